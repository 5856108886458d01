"""A fork that stands for `python` does what the process that it stands for would do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

WAITS = "import time; print('going', flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(7)", "1 / 0", "import os, signal; os.kill(os.getpid(), 15)", ""]
)
def test_it_ends_as_python_does(forked_python, code):
    statuses = [subprocess.run([one, "-c", code], stderr=-3).returncode for one in (forked_python, sys.executable)]
    assert statuses[0] == statuses[1]


def test_it_has_the_streams_arguments_environment_and_folder_that_it_was_given(forked_python, tmp_path):
    code = "import os, sys; print(sys.argv, sys.stdin.read(), os.environ['FRUIT'], os.getcwd(), file=sys.stderr)"
    done = subprocess.run(
        [forked_python, "-c", code, "a", "-m"],
        **{"input": "é", "capture_output": True, "encoding": "utf-8"},
        env={"FRUIT": "plum"},
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", f"['-c', 'a', '-m'] é plum {tmp_path}\n")


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
    command = [forked_python, "-c", f"import os; print(os.getpid())\n{WAITS}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        number = int(running.stdout.readline())
        assert running.stdout.readline() == b"going\n"
        running.kill()
        assert running.stdout.read() == b""  # its end of the pipe is closed
    deadline = time.monotonic() + 20
    while Path(f"/proc/{number}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{number}").exists()
