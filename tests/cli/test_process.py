"""`talon` as a process: signals, pipes, and what it does not import."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from talon_tests.children import hear_ctrl_c

SENTENCE = "hi-🙂é~\n"
TALON = [sys.executable, "-c", "import sys; from talon_core.cli import main; sys.exit(main())"]
SLOW = """
import sys, time
from talon_core.engine.generation import Batch
fast = Batch.__next__
def slow(self):
    rounds = fast(self)
    time.sleep(0.2)
    return rounds
Batch.__next__ = slow
from talon_core.cli import main
sys.exit(main())
"""
"""The command line with a pause after each round, so that there is time to interrupt it."""


def start(command: Sequence[str], *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*command, *arguments],
        preexec_fn=None if os.name == "nt" else hear_ctrl_c,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUTF8": "1", **environment},
        bufsize=0,
    )


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_keeps_what_is_there_and_ends_with_130(model, forked_python):
    command = [forked_python, "-c", SLOW]
    with start(command, "generate", SENTENCE, "--model", model, "--policy", "none") as running:
        assert running.stdout is not None
        first = running.stdout.read(2)
        running.send_signal(signal.SIGINT)
        rest, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"Traceback" not in err
    assert b" s, interrupted: " in err
    text = (first + rest).decode()
    assert text.endswith("\n")
    assert (SENTENCE * 30).startswith(text[:-1])


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_with_json_leaves_an_object_that_says_so(model, forked_python):
    going = "print('going', file=sys.stderr, flush=True)"
    command = [forked_python, "-c", SLOW.replace("    time.sleep(0.2)", f"    {going}\n    time.sleep(0.2)")]
    with start(command, "generate", SENTENCE, "--model", model, "--policy", "none", "--json") as running:
        assert running.stderr is not None
        running.stderr.read(5)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, json.loads(out)) == (130, {"error": "interrupted"})
    assert b"Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="closes a pipe")
def test_a_reader_that_goes_away_is_no_error(model, forked_python):
    command = [forked_python, "-c", SLOW]
    with start(command, "generate", SENTENCE, "--model", model, "--policy", "none") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)
        running.stdout.close()
        err = running.stderr.read()
        running.wait(timeout=60)
    assert err == b""
    assert running.returncode == 141


@pytest.mark.skipif(os.name == "nt", reason="closes a pipe")
@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["list", "--json"]])
def test_every_command_ends_with_141_where_nobody_reads(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*TALON, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_terminal_that_knows_only_ascii_gets_ascii(model, forked_python):
    command = [forked_python, *TALON[1:]]
    options = ("--model", model, "--max-new-tokens", "20", "--show-tree")
    with start(command, "generate", SENTENCE, *options, PYTHONUTF8="0", PYTHONIOENCODING="ascii") as running:
        out, err = running.communicate(timeout=60)
    assert running.returncode == 0
    assert out.startswith(b"hi-?")
    assert b"* accepted" in err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["list", "--json"], ["models", "list"], ["generate", "--help"]]
)
def test_looking_around_imports_no_model_library(arguments):
    script = (
        "import sys\nfrom talon_core.cli import main\nstatus = main(sys.argv[1:])\n"
        "found = {'torch', 'transformers', 'triton'} & set(sys.modules)\n"
        "sys.exit(f'imported {found}' if found else status)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_installed_command_says_its_version(talon):
    ran = talon("--version")
    assert ran.status == 0
    assert ran.out.startswith("talon-core ")


def test_help_is_shown_where_nothing_is_asked_for(talon):
    ran = talon()
    assert ran.status == 0
    assert "generate" in ran.out


def test_the_garbage_collector_is_left_as_it_was(talon):
    before = gc.get_threshold()
    assert talon("list", "nothing").status == 2
    assert talon("list").status == 0
    assert gc.get_threshold() == before


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost(process, more):
    """hypothesis has such a callback; there Python prints the KeyboardInterrupt, and goes on."""
    script = """
import gc, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from talon_core.cli import main, listing
def interrupted(phase, info):
    gc.callbacks.remove(interrupted)
    raise KeyboardInterrupt
def load_registry():
    gc.callbacks.append(interrupted)
    gc.collect()
    time.sleep(20)
listing.load_registry = load_registry
sys.exit(main())
"""
    status, out, err = process(script, "list", *more)
    assert (status, err) == (130, "talon: interrupted\n")
    assert not out if not more else json.loads(out) == {"error": "interrupted"}


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ctrl_c_while_modules_are_imported_says_so(process, more):
    script = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from talon_core.cli import main
class Interrupting:
    def find_spec(self, name, *_):
        if name == "talon_core.cli.run":
            os.kill(os.getpid(), signal.SIGINT)
sys.modules.pop("talon_core.cli.run", None)
sys.meta_path.insert(0, Interrupting())
sys.exit(main())
"""
    status, out, err = process(script, "generate", "hi", *more)
    assert (status, err) == (130, "talon: interrupted\n")
    assert not out if not more else json.loads(out) == {"error": "interrupted"}


def test_errors_do_not_reach_the_terminal_as_commands(process: Any) -> None:
    script = "import sys; from talon_core.cli import main; sys.exit(main(sys.argv[1:]))"
    for name in ("\x1b[31mred", "two\nlines.json"):
        status, _, err = process(script, "trace", "replay", name, "talon")
        assert status == 2
        assert err.count("\n") == 1
        assert err.rstrip("\n").isprintable()
