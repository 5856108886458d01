"""Work in processes that are forks of this one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from talon_core.plugins.registry import load_registry
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import read_trace
from talon_core.trace.methods import parse_methods
from talon_core.trace.processes import in_processes
from talon_core.trace.run import replayed

WORKS = """
import os, time
from talon_core.trace.processes import in_processes

def work(_):
    time.sleep(0.01)
    return os.getpid()

for _, worker in in_processes(3)(work, range(10**6)):
    print(worker, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system cannot fork")
def test_no_worker_outlives_the_process_that_waits_for_it() -> None:
    with subprocess.Popen([sys.executable, "-c", WORKS], stdout=subprocess.PIPE, text=True) as waits:
        assert waits.stdout is not None
        workers = set[int]()
        while len(workers) < 3:
            workers.add(int(waits.stdout.readline()))
        waits.send_signal(signal.SIGKILL)
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until and any(map(runs, workers)):
            time.sleep(0.02)
        assert not [worker for worker in workers if runs(worker)]
    finally:
        for worker in filter(runs, workers):
            os.kill(worker, signal.SIGKILL)


def runs(process: int) -> bool:
    """Whether a process is there, and has not only been left unasked for how it ended."""
    with suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    if sys.platform == "linux":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("count", [1, 3, 20])
def test_each_thing_is_worked_on_once_in_any_number_of_processes(count: int) -> None:
    found = dict(in_processes(count)(lambda thing: thing * thing, range(10)))
    assert found == {thing: thing * thing for thing in range(10)}


DIES = """
import os, sys
from multiprocessing.connection import Connection
from pathlib import Path
from talon_core.trace.processes import in_processes

died, send = Path(sys.argv[1]), Connection._send

def half(self, data, *more):
    if len(data) > 1000 and not died.exists():
        died.touch()
        os.write(self.fileno(), bytes(data)[:100])
        os._exit(9)
    send(self, data, *more)

Connection._send = half
assert dict(in_processes(2)(lambda thing: bytes([thing]) * 5000, range(4))) == {
    thing: bytes([thing]) * 5000 for thing in range(4)
}
assert died.exists()
"""


def ran(program: str, *arguments: str) -> None:
    """Run a program by itself: a process that has loaded torch is not forked."""
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="the system cannot fork")
def test_a_worker_that_dies_in_the_middle_of_its_answer_loses_nothing(tmp_path: Path) -> None:
    ran(DIES, str(tmp_path / "died"))


RAISES = """
import sys
from talon_core.errors import PluginError
from talon_core.trace.processes import in_processes

def work(_):
    raise eval(sys.argv[1])("wrong")

try:
    dict(in_processes(2)(work, range(2)))
except Exception as error:
    found = type(error).__name__
assert found == sys.argv[2], found
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system cannot fork")
@pytest.mark.parametrize(
    ("raised", "comes"),
    [
        ("MemoryError", "MemoryError"),
        ("OSError", "ValueError"),
        ("PluginError", "PluginError"),
        ("ZeroDivisionError", "RuntimeError"),
    ],
)
def test_errors_of_workers_are_told_apart(raised: str, comes: str) -> None:
    """Those about memory, what was given and plugins are sentences on the command line, and others are our own."""
    ran(RAISES, raised, comes)


@pytest.mark.parametrize(
    ("specs", "jobs", "expected"),
    [
        (["none"], None, 1),
        (["none", "chain"], None, 1),
        (["talon-cost", "ngram/chain"], None, 2),  # text by text
        (["talon-cost", "ngram/chain"], 1, 1),
        (["none"], 4, 4),
        ([f"chain:length={length}" for length in range(1, 9)], None, 3),
    ],
)
def test_a_replay_begins_processes_where_each_has_enough_to_do(
    monkeypatch: pytest.MonkeyPatch, specs: list[str], jobs: int | None, expected: int
) -> None:
    asked: list[int] = []

    def noted(count: int) -> object:
        asked.append(count)
        return in_processes(1)

    monkeypatch.setattr("talon_core.trace.run.usable_cores", lambda: 8)
    monkeypatch.setattr("talon_core.trace.run.in_processes", noted)
    trace = read_trace(SHIPPED)
    assert len(trace.texts()) == 4
    replayed(trace, parse_methods(specs, trace, load_registry()), jobs)
    assert asked == [expected]
