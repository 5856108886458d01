"""Threads that kernels run on: teams stay what they are, and a thread's memory goes with it."""

import resource
from pathlib import Path
from threading import Thread

import pytest
import torch

from talon_kernels.best_tokens import best_tokens
from talon_kernels.same_numbers import same_numbers
from talon_kernels.skinny_linear import skinny_linear

TASKS = Path("/proc/self/task")


@pytest.mark.skipif(not TASKS.exists(), reason="threads are listed on Linux alone")
def test_little_work_ends_no_thread_that_much_work_needs(library, threads):
    threads(4)
    x, weight = torch.ones(4, 512), torch.ones(512, 512)
    scores, wide = torch.randn(2, 5000), torch.ones(40000)
    skinny_linear(x, weight, backend="native")
    before = {task.name for task in TASKS.iterdir()}
    for _ in range(3):
        best_tokens(scores, 4, backend="native")
        same_numbers(wide.bfloat16(), wide, backend="native")
        skinny_linear(x, weight, backend="native")
    assert before <= {task.name for task in TASKS.iterdir()}


def test_what_a_thread_has_used_is_given_back_when_it_ends(library, threads):
    threads(1)
    x, weight = torch.ones(5, 1 << 16), torch.ones(1, 1 << 16)  # rows that push each other out of caches are copied
    copied = x.nbytes

    def run(times):
        for _ in range(times):
            thread = Thread(target=skinny_linear, args=(x, weight), kwargs={"backend": "native"})
            thread.start()
            thread.join()

    run(8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    run(120)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < 40 * copied
