"""What reaches stdout and stderr: one object with `--json`, whatever plugins print, with streams closed or full."""

import json
import logging
import os
import signal
import sys

import pytest

from talon_core.cli.streams import streams

pytestmark = pytest.mark.skipif(os.name == "nt", reason="descriptors and signals as POSIX has them")

NOISY = """
import atexit, ctypes, os, sys
from talon_core.cli import listing, main
load_registry = listing.load_registry
def noise():
    os.write(1, b"from the descriptor\\n")
    os.system("echo from a child")
    print("from print", flush=True)
    ctypes.CDLL(None).printf(b"from C\\n")
def noisy():
    noise()
    return load_registry()
listing.load_registry = noisy
atexit.register(noise)
sys.exit(main())
"""
"""The command line with a plugin that prints in every way there is, also when the process ends."""

TALON = "import sys; from talon_core.cli import main; sys.exit(main())"


@pytest.mark.parametrize("redirect", ["", "2>&-", "<&-"])
def test_with_json_stdout_holds_one_object_whatever_plugins_print(process, redirect):
    status, out, err = process(NOISY, "list", "rules", "--json", redirect=redirect, fresh=redirect != "<&-")
    assert status == 0
    assert "rules" in json.loads(out)
    if redirect != "2>&-":
        for way in ("from the descriptor", "from a child", "from print", "from C"):
            assert err.count(way) == 2


def test_descriptor_1_is_given_back_to_a_program_that_runs_commands(process):
    script = "from talon_core.cli import main; main(['list', 'rules', '--json']); print('done', flush=True)"
    _, out, err = process(f"{script}; import os; os.write(1, b'and done')")
    assert out.endswith("}\ndone\nand done")
    assert err == ""


@pytest.mark.parametrize("arguments", [["list", "rulez", "--json"], ["list", "--colour", "--json"], ["lst", "--json"]])
@pytest.mark.parametrize("redirect", ["", "2>&-"])
def test_with_json_an_error_is_an_object_too(process, arguments, redirect):
    status, out, err = process(TALON, *arguments, redirect=redirect)
    assert status == 2
    (sentence,) = json.loads(out).values()
    assert err == ("" if redirect else f"talon: {sentence}\n")


def test_an_answer_that_json_has_no_words_for_is_an_error_in_json(capsys):
    with streams(for_good=False) as out:
        out.only_json()
        with pytest.raises(ValueError, match="JSON"):
            out.answer({"figure": float("nan")})
        out.error("wrong")
        out.finish()
    assert json.loads(capsys.readouterr().out) == {"error": "wrong"}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_an_error_after_the_answer_stands_beside_it(talon, model):
    options = ["--model", model, "--policy", "chain", "--drafter", "draft-model:skip=1", "--max-new-tokens", "5"]
    ran = talon("generate", "hi", *options, "--tree-svg", "/dev/full", "--json")
    said = "No space left on device: '/dev/full'"
    assert (ran.status, ran.answer["error"], len(ran.answer["token_ids"])) == (2, said, 5)


def test_what_calls_sys_exit_is_an_error(talon, monkeypatch):
    monkeypatch.setattr("talon_core.cli.listing.load_registry", lambda: sys.exit(0))
    said = "a plugin or a library has called sys.exit(0)"
    assert talon("list").refusal == talon("list", "--json").refusal == said


def test_an_error_of_our_own_is_an_object_and_a_traceback(process):
    status, out, err = process(NOISY.replace("return load_registry()", "return {}['x']"), "list", "--json")
    assert (status, json.loads(out)) == (1, {"error": "KeyError: 'x'"})
    assert "Traceback" in err


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["generate", "hi"], ["--help"]])
def test_a_closed_stdout_is_said_in_a_sentence(process, arguments):
    status, _, err = process(TALON, *arguments, redirect=">&-", fresh=arguments == ["list"])
    assert status == 2
    assert err.startswith("talon: stdout is closed, so there is nowhere to write the answer to; ")
    assert err.count("\n") == 1


def test_a_closed_stdin_is_said_in_a_sentence_where_it_is_read(process):
    status, _, err = process(TALON, "generate", "--prompt-file", "-", redirect="<&-")
    assert (status, err) == (2, "talon: standard input is closed; give PROMPT, or --prompt-file FILE\n")


def test_a_file_that_is_opened_never_takes_the_place_of_a_closed_stream(process, tmp_path):
    script = f"from talon_core.cli import main; main(['--version']); file = open({str(tmp_path / 'file')!r}, 'w')"
    assert process(f"{script}; import sys; sys.exit(file.fileno())", redirect="<&- >&- 2>&-")[0] > 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_behind_stderr_takes_nothing_from_the_answer(process):
    noted = NOISY.replace("noise()\n    return", "sys.stderr.write('noted'); sys.stderr.flush()\n    return")
    noted = noted.replace("atexit.register(noise)", "")
    status, out, _ = process(noted, "list", "rules", redirect="2>/dev/full")
    assert (status, out.splitlines()[0]) == (0, "rules")
    assert process(TALON, "list", "rulez", redirect="2>/dev/full")[0] == 2


COUNTED = """
import io, os, sys
refused = 0
class Counted(io.FileIO):  # what every text stream writes through
    def write(self, data):
        global refused
        try:
            return super().write(data)
        except OSError:
            refused += 1
            raise
def counted(file, mode="r", encoding=None, **options):
    return io.TextIOWrapper(io.BufferedWriter(Counted(file, mode)), encoding=encoding, errors=options.get("errors"))
sys.stdout = sys.__stdout__ = counted(1, "w", sys.stdout.encoding)
from talon_core.cli import main, streams
streams.open = counted
status = main()
before = refused
for stream in (sys.stdout, sys.__stdout__):
    stream.flush()
print("refused:", before > 0, refused - before, file=sys.stderr)
sys.exit(status)
"""
"""The command line, which says at its end whether something could not be written, and how often it was tried again."""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["--help"], ["lst", "--json"]])
def test_a_full_disk_behind_stdout_is_said_once_and_not_tried_again(process, arguments):
    status, _, err = process(COUNTED, *arguments, redirect=">/dev/full", fresh=arguments == ["list"])
    assert status == 2
    said, refused = err.splitlines()
    assert said.startswith("talon: ")
    assert refused == "refused: True 0"


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"]])
def test_ctrl_c_while_modules_are_imported_ends_with_130_and_one_word(process, arguments):
    interrupted = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored by whoever started the tests
class Interrupts:
    def find_spec(self, name, *_):
        if name == "talon_core.cli.bench":
            os.kill(os.getpid(), signal.{signal.SIGINT.name})
sys.meta_path.insert(0, Interrupts())
"""
    status, out, err = process(interrupted + TALON, *arguments, fresh=True)
    assert (status, err) == (130, "talon: interrupted\n")
    assert out == ('{"error": "interrupted"}\n' if "--json" in arguments else "")


def test_ctrl_c_in_doctor_ends_with_130_and_one_word(talon, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("talon_core.cli.doctor.resolve", interrupted)
    ran = talon("doctor")
    assert (ran.status, ran.out, ran.err) == (130, "", "talon: interrupted\n")
    assert talon("doctor", "--json").answer == {"error": "interrupted"}


def test_warnings_that_are_logged_come_as_lines_on_stderr(talon, model, monkeypatch):
    arguments = ("generate", "hi", "--model", model, "--max-new-tokens", "2", "--policy", "talon:budget=2000", "--json")
    ran = talon(*arguments)
    assert ran.status == 0
    (line,) = [line for line in ran.err.splitlines() if "2000" in line]
    assert line.startswith("talon: tree policy 'talon' may verify 2000 nodes in each round")
    assert "drafter 'ngram' drafts" not in ran.err
    monkeypatch.setenv("TALON_DEBUG", "1")
    assert "talon: drafter 'ngram' drafts for tree policy 'talon'\n" in talon(*arguments).err
    assert logging.getLogger("talon_core").handlers == []
