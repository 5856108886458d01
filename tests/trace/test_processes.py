"""Work in processes that are forks of this one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from talon_core.trace.processes import in_processes

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
