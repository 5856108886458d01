"""What decodes, measured from outside, and threads that have to rest before anything else is."""

import time
from collections.abc import Callable
from typing import Any

import torch

from talon_core.peer import PeerAnswer
from talon_core.request import Request

Timed = Callable[[Request], tuple[PeerAnswer, float]]
"""`answer(request)`: what was decoded, and the seconds that it took."""

WINDOW = 0.01
"""Seconds for which a process is watched."""
AT_REST = 0.1
"""A process that computes on less of a core than this, while it waits, is at rest."""
PATIENCE = 5.0
"""Seconds in which it has to come to rest."""


def timed(answer: Callable[[Request], PeerAnswer], device: Any) -> Timed:
    """Measure the whole of each call.

    Args:
        answer: decodes.
        device: of the model; a GPU is waited for, as it works on after a call has returned.
    """

    def measured(request: Request) -> tuple[PeerAnswer, float]:
        _wait_for(device)
        started = time.perf_counter()
        found = answer(request)
        _wait_for(device)
        return found, time.perf_counter() - started

    return measured


def busy_after(patience: float = PATIENCE) -> float:
    """Wait until the other threads of this process rest: libraries let theirs spin for a while, waiting for more.

    Args:
        patience: most seconds to wait.

    Returns:
        On how much of a core they compute in the end: less than `AT_REST`, unless patience has run out.
    """
    ends = time.perf_counter() + patience
    while True:
        began, used = time.perf_counter(), time.process_time()
        time.sleep(WINDOW)
        now = time.perf_counter()
        busy = (time.process_time() - used) / (now - began)
        if busy < AT_REST or now > ends:
            return busy


def _wait_for(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
