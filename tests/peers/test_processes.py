"""Each peer decodes in a process of its own, which dies alone and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from talon_core.bench.methods import parse_methods, parse_peer
from talon_core.bench.peer_process import PeerFailure, PeerProcess, wanted
from talon_core.bench.prompts import Prompt, PromptSet
from talon_core.bench.results import read_results
from talon_core.bench.run import FAILURES, Bench
from talon_core.bench.schedule import Plan
from talon_core.bench.timed import AT_REST, busy_after
from talon_core.errors import PluginError
from talon_core.peer import Peer
from talon_core.request import Request
from talon_core.sampling import Sampling
from talon_tests.children import hear_ctrl_c
from talon_tests.module_plugins import install
from talon_tests.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are ended by signals here")

ODD = '''
"""A peer that does odd things, and a library that it needs."""

import gc, os, signal, sys, threading, time
from pathlib import Path

import attrs
import torch

from talon_core.hookspecs import hookimpl
from talon_core.peer import Peer, PeerAnswer, PeerEngine


@attrs.frozen
class Odd(Peer):
    """Does what its mode says at prompts that begin with token 7.

    Attributes:
        mode: what that is.
        value: anything else.
    """

    name = "odd"
    mode: str = "nothing"
    value: object = None

    def open(self, setting):
        import odd_library

        print("a library says something on stdout")
        if self.mode == "dies at once":
            os._exit(4)
        if self.mode == "full":
            raise OSError(28, "No space left on device", "somewhere")
        if self.mode == "needs much":
            raise MemoryError("64 GiB")

        def decode(request):
            if int(request.ids[0]) == 7:
                DOES[self.mode]()
            return PeerAnswer([gc.get_threshold()[1]] * request.max_new_tokens, os.getpid(), torch.get_num_threads())

        threads = int(os.environ["OMP_NUM_THREADS"])
        return PeerEngine(decode, odd_library.Version(len(odd_library.__name__)), setting.dtype, threads)


def spin(seconds):
    def turn():
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            pass

    threading.Thread(target=turn, daemon=True).start()


def stall():
    Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(600)


def fail():
    raise RuntimeError("not with this one")


DOES = {
    "nothing": lambda: None,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crashes": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leaves": lambda: os._exit(3),
    "exits": lambda: sys.exit("enough"),
    "fails": fail,
    "sleeps": lambda: time.sleep(0.2),
    "spins": lambda: spin(0.3),
    "stalls": stall,
    "forks": lambda: os.fork() or sys.exit("of the other one"),
}


@hookimpl
def talon_peers():
    return [Odd]
'''
REAL = sys.executable
SEVEN, OTHER = (Request(np.array([first, 5, 3]), 4) for first in (7, 8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder, with a tokenizer of words that are numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("model")
    model = tiny_model("llama")
    model.save_pretrained(path)
    words = Tokenizer(models.WordLevel({str(token): token for token in range(model.config.vocab_size)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def loaded(folder):
    from talon_core.models.loading import load_model

    return load_model(str(folder))


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The plugin, installed; gives its folder."""
    install(tmp_path, "odd", ODD)
    (tmp_path / "odd_library.py").write_text("class Version(str):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("odd", None)


@pytest.fixture
def opened(plugin, folder, loaded, monkeypatch, forked_python):
    """Opens the peer in a mode, or another one, and ends its process."""
    monkeypatch.setattr(sys, "executable", forked_python)
    processes = []

    def open_(mode="nothing", peer=None, **changes):
        made = peer if peer is not None else attrs.evolve(parse_peer("odd").peer, mode=mode)
        setting = {"source": str(folder), "trust_remote_code": False, "eos": frozenset(), "room": 64, "threads": 1}
        opening = wanted("odd", made, loaded[0], **setting, vocab_size=loaded[0].config.vocab_size)
        processes.append(PeerProcess(made, attrs.evolve(opening, **changes)))
        return processes[-1]

    yield open_
    for process in processes:
        process.close()


def is_there(pid):
    """Whether a process is, and is not only waited for by its parent."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def comes(happened, seconds=20):
    """Whether something happens soon."""
    ends = time.monotonic() + seconds
    while not happened() and time.monotonic() < ends:
        time.sleep(0.02)
    return happened()


def test_what_a_peer_loads_is_not_loaded_where_talon_decodes(opened, capfd):
    process = opened()
    (answer, _), (again, _) = process.decode(OTHER), process.decode(SEVEN)
    assert answer.target_passes == again.target_passes != os.getpid()  # its number stands for the passes
    assert "odd_library" not in sys.modules
    assert process.described["version"] == str(len("odd_library"))
    assert "a library says something on stdout" in capfd.readouterr().err


def test_a_process_that_a_peer_has_forked_answers_nobody(opened):
    process = opened("forks")
    (one, _), (other, _) = process.decode(SEVEN), process.decode(OTHER)
    assert one.target_passes == other.target_passes


def test_garbage_is_collected_as_often_as_where_talon_decodes(opened):
    process = opened(collected=(50_000, 37, 50))
    assert list(process.decode(OTHER)[0].token_ids) == [37] * 4


def test_threads_are_those_that_talon_has(opened):
    process = opened(threads=torch.get_num_threads() + 2)
    assert process.described["threads"] == torch.get_num_threads() + 2
    assert process.decode(OTHER)[0].draft_passes == torch.get_num_threads() + 2


def test_time_is_that_of_the_call_alone(opened):
    process = opened("sleeps")
    assert process.decode(SEVEN)[1] >= 0.2
    assert process.decode(OTHER)[1] < 0.2


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look at")
def test_an_answer_comes_when_all_threads_rest(opened):
    process = opened("spins")
    started = time.perf_counter()
    answer, seconds = process.decode(SEVEN)
    assert time.perf_counter() - started - seconds > 0.25

    def ticks():
        fields = Path(f"/proc/{answer.target_passes}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.5)
    assert ticks() - before <= 0.05 * os.sysconf("SC_CLK_TCK")


def test_one_that_never_rests_is_seen():
    over = threading.Event()

    def turn():
        while not over.is_set():
            pass

    spinning = threading.Thread(target=turn)
    spinning.start()
    try:
        assert busy_after(0.1) > AT_REST
    finally:
        over.set()
        spinning.join()
    assert busy_after() < AT_REST


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("is killed", "was at decode when its process was ended by SIGKILL; the machine may have run out of memory"),
        ("crashes", "was at decode when its process was ended by SIGSEGV"),
        ("leaves", "was at decode when its process ended with status 3"),
        ("exits", "raised SystemExit in decode: enough"),
        ("fails", "raised RuntimeError in decode: not with this one"),
    ],
)
def test_one_that_fails_at_a_prompt_is_named_and_decodes_the_next(opened, mode, how):
    process = opened(mode)
    with pytest.raises(PeerFailure) as raised:
        process.decode(SEVEN)
    assert str(raised.value) == f"peer 'odd' (odd.Odd) {how}"
    assert len(process.decode(OTHER)[0].token_ids) == 4


@pytest.mark.parametrize(
    ("mode", "error", "sentence"),
    [
        ("dies at once", PluginError, "peer 'odd' (odd.Odd) was at open when its process ended with status 4"),
        ("full", OSError, "[Errno 28] No space left on device: 'somewhere'"),
        ("needs much", MemoryError, "peer 'odd': 64 GiB"),
    ],
)
def test_one_that_cannot_be_opened_says_why(opened, mode, error, sentence):
    with pytest.raises(error) as raised:
        opened(mode)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("sleep 60 & echo $! > {pid}; exit 4", "when its process ended with status 4"),
        (
            "echo $$ > {pid}; echo c of no pickle; sleep 60",
            "when something that is no answer came from its process; .*",
        ),
    ],
    ids=["dies and leaves another process", "says something else"],
)
def test_what_is_no_answer_is_told_and_no_process_is_left(opened, tmp_path, monkeypatch, script, sentence):
    python, pid = tmp_path / "python", tmp_path / "pid"
    python.write_text("#!/bin/sh\n" + script.format(pid=pid))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PluginError, match=rf"^peer 'odd' \(odd.Odd\) was at open {sentence}$"):
        opened()
    assert comes(lambda: not is_there(int(pid.read_text())))


def test_modules_of_the_folder_that_one_is_in_are_not_those_of_python(opened, tmp_path, monkeypatch):
    python = tmp_path / "python"
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    python.write_text(f'#!/bin/sh\nexec {REAL} "$1" -c "import json"')  # with the option alone, for the time it takes
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PluginError, match=r"ended with status 0$"):
        opened()


@attrs.frozen
class Unregistered(Peer):
    """One that no plugin has."""

    name = "odd"

    def open(self, setting):
        raise NotImplementedError


def test_what_the_other_process_cannot_have_is_refused_in_a_sentence(opened, plugin):
    apart = "peer 'odd' decodes in a process of its own, and "
    odd = parse_peer("odd").peer
    with pytest.raises(ValueError, match=f"{apart}its options cannot be sent there: .*lambda"):
        opened(peer=attrs.evolve(odd, value=lambda: None))
    with pytest.raises(ValueError, match=r"there no plugin registers its class .*Unregistered by this name; name the"):
        opened(peer=Unregistered())
    with pytest.raises(ValueError, match=f"{apart}the model '.*' that is loaded there has other weights"):
        opened(sha256="0" * 64)
    with pytest.raises(ValueError, match=r"there is no folder '.*nowhere'"):
        opened(source=str(plugin / "nowhere"))
    request = attrs.evolve(OTHER, sampling=Sampling(True, (lambda ids, scores: scores,)))
    with pytest.raises(ValueError, match=f"{apart}what is to be decoded cannot be sent there: .*lambda"):
        opened().decode(request)


def measured(folder, loaded, firsts, out, warmup=0):
    """A run of plain decoding and the peer on prompts that begin with these tokens."""
    prompts = tuple(Prompt((f"{first} 5 3",), None) for first in firsts)
    methods = tuple(parse_methods(["none"], peers=["odd:mode=fails"]))
    plan = Plan(
        str(folder), methods, (PromptSet("words", "", "0" * 64, prompts, len(prompts)),), 4, raw=True, warmup=warmup
    )
    bench = Bench(plan, *loaded)
    try:
        return bench.run(out)
    finally:
        bench.close()


def test_a_prompt_at_which_a_peer_fails_is_left_out_and_the_others_are_measured(opened, folder, loaded, tmp_path):
    with pytest.raises(PluginError) as raised:
        measured(folder, loaded, [8, 7, 9, 7, 7, 10], tmp_path / "out")
    assert str(raised.value).startswith(
        "peer 'odd' (odd.Odd) raised RuntimeError in decode: not with this one (prompt 1 of the set 'words', and 2 "
        "more); where a peer fails the prompt is left out for all methods"
    )
    results = read_results(tmp_path / "out")
    assert [(each.prompt, each.method) for each in results.measurements] == [
        *((0, "none"), (0, "odd:mode=fails"), (2, "none"), (2, "odd:mode=fails")),
        *((5, "odd:mode=fails"), (5, "none")),
    ]
    assert results.unfinished == 0


def test_a_peer_that_fails_again_and_again_ends_the_run(opened, folder, loaded, tmp_path):
    with pytest.raises(PluginError, match=f"and {FAILURES - 1} more"):
        measured(folder, loaded, [8, *[7] * FAILURES, 9], tmp_path / "out")
    assert {each.prompt for each in read_results(tmp_path / "out").measurements} == {0}


def test_a_peer_that_fails_while_it_warms_up_ends_the_run(opened, folder, loaded, tmp_path):
    with pytest.raises(PluginError, match=r"not with this one \(prompt 0 of the set 'words', which warms up\)"):
        measured(folder, loaded, [7, 8], tmp_path / "out", warmup=1)


RUN = """
import sys
sys.path.insert(0, {plugin!r})
sys.executable = {python!r} or sys.executable
from talon_core.cli import main
sys.exit(main())
"""


@pytest.fixture
def stalled(plugin, folder, forked_python):
    """Starts `talon bench run` with a peer that stalls; gives the run, and the number of the peer's process."""
    (plugin / "prompts.jsonl").write_text(json.dumps({"prompt": "7 5 3"}))
    runs = []

    def start(python=""):
        command = [forked_python, "-c", RUN.format(plugin=str(plugin), python=python)]
        command += ["bench", "run", "none", "--peer", "odd:mode=stalls", "--prompts", str(plugin / "prompts.jsonl")]
        command += ["--model", str(folder), "--out", str(plugin / "out"), "--raw", "--warmup", "0"]
        runs.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c))
        pid = plugin / "pid"
        assert comes(lambda: pid.exists() and pid.read_text()), runs[-1].stderr.read()
        return runs[-1], int(pid.read_text())

    yield start
    for run in runs:
        run.kill()
        run.communicate()


def test_ctrl_c_ends_the_peer_too_and_nobody_prints_a_traceback(stalled, forked_python):
    run, peer = stalled(forked_python)
    assert is_there(peer)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in said
    assert comes(lambda: not is_there(peer))


def test_a_peer_ends_when_the_run_is_killed(stalled):
    run, peer = stalled()
    assert is_there(peer)
    run.kill()
    assert comes(lambda: not is_there(peer))
