"""What a drafter reads of a text when it is asked to draft for it, and what that takes."""

from collections.abc import Callable
from time import perf_counter

import torch

from talon_core.drafter import Reading
from talon_core.runtime.transfers import wait_for


def timed_reading(device: torch.device, tokens: int, read: Callable[[], object]) -> Reading | None:
    """Read what waits, and tell what that took; on a GPU it is waited for.

    Args:
        device: where it is read.
        tokens: that wait; where there are none, nothing is done.
        read: reads them.
    """
    if not tokens:
        return None
    wait_for(device)
    started = perf_counter()
    read()
    wait_for(device)
    return Reading(tokens, perf_counter() - started)
