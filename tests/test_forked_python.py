"""A fork that stands for `python` does what the process that it stands for would do."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

WAITS = "import time; print('going', flush=True); time.sleep(60)"


LAST = (
    "import atexit, threading; atexit.register(print, 'end'); threading.Thread(target=print, args=['thread']).start()"
)


@pytest.mark.parametrize("code", ["import sys; sys.exit(7)", "1 / 0", "import os; os.kill(os.getpid(), 15)", LAST])
def test_it_ends_as_python_does(forked_python, code):
    forked, real = (
        subprocess.run([one, "-c", code], capture_output=True, check=False) for one in (forked_python, sys.executable)
    )
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_it_has_the_streams_arguments_environment_and_folder_that_it_was_given(forked_python, tmp_path):
    code = "import os, sys; print(sys.argv, sys.stdin.read(), os.environ['FRUIT'], os.getcwd(), file=sys.stderr)"
    done = subprocess.run(
        [forked_python, "-c", code, "a", "-m"],
        **{"input": "é", "capture_output": True, "encoding": "utf-8"},
        env={"FRUIT": "plum"},
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", f"['-c', 'a', '-m'] é plum {tmp_path}\n")


def test_its_streams_have_the_encoding_that_the_environment_names(forked_python):
    code = "import sys; print([(one.encoding, one.errors) for one in (sys.stdin, sys.stdout, sys.stderr)])"
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    said = [subprocess.check_output([one, "-c", code], env=environment) for one in (forked_python, sys.executable)]
    assert said[0] == said[1]


def test_a_module_is_run_as_the_main_one(forked_python, tmp_path):
    (tmp_path / "told.py").write_text("import sys; print(__name__, *sys.argv[1:])")
    assert subprocess.check_output([forked_python, "-m", "told", "a"], cwd=tmp_path) == b"__main__ a\n"
    hidden = subprocess.run([forked_python, "-P", "-m", "told"], cwd=tmp_path, capture_output=True)
    assert b"No module named told" in hidden.stderr


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_reaches_it_unless_who_started_it_ignores_it(forked_python, ignored):
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n" + WAITS
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    command = [forked_python, "-c", code]
    with subprocess.Popen(
        command, preexec_fn=lambda: signal.signal(signal.SIGINT, handler), stdout=-1, stderr=-3
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == f"{ignored}\n".encode()
        assert running.stdout.readline() == b"going\n"
        running.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
        assert running.wait(20) == -(signal.SIGTERM if ignored else signal.SIGINT)


def test_it_ends_when_its_stand_in_is_killed(forked_python):
    with subprocess.Popen([forked_python, "-c", WAITS], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"going\n"
        killed = time.monotonic()
        running.kill()
        assert running.stdout.read() == b""  # when the fork's end of the pipe is closed, too
    assert time.monotonic() - killed < 30
