"""Where drafting goes on while the target verifies: a thread of this process, or a process with cores or a GPU."""

import os
import re

import attrs

from talon_core.defaults import DEFAULT_PLACE
from talon_core.errors import written


@attrs.frozen
class Place:
    """A process beside the target's.

    Attributes:
        device: "cpu" or "cuda".
        number: of a CPU how many cores are its own; of a GPU which one it is, from 0.
    """

    device: str
    number: int


def parse_place(asked: object) -> Place | None:
    """Where drafting goes on; None for a thread of this process.

    Args:
        asked: "thread", "cpu:1" with a number of cores, or "cuda:1" with a GPU's.

    Raises:
        ValueError: if it is none of these.
    """
    if asked == DEFAULT_PLACE:
        return None
    found = re.fullmatch(r"(cpu|cuda):([0-9]{1,4})", asked) if isinstance(asked, str) else None
    if found is None or (found[1] == "cpu" and not int(found[2])):
        raise ValueError(
            f"draft_on is {written(asked)}; it must be thread, cpu:1 (a process with so many cores of its own), or "
            "cuda:1 (a process on this GPU)"
        )
    return Place(found[1], int(found[2]))


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_usable(place: Place | None) -> None:
    """Refuse a process that would leave the target no core, or that is to be on a GPU which is not there.

    It makes no CUDA context in this process.

    Args:
        place: of the process; None for a thread, which any machine has.

    Raises:
        ValueError: the sentence says how many cores or GPUs there are.
    """
    if place is None:
        return
    asked = f"draft_on is {place.device}:{place.number}"
    if place.device == "cpu":
        cores = usable_cores()
        if place.number >= cores:
            raise ValueError(
                f"{asked}, and this process may use {cores} core{'s' * (cores != 1)}, of which the target needs one at "
                f"least; {f'take cpu:{cores - 1} at most' if cores > 1 else 'draft on a thread'}"
            )
        return
    import torch

    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch has no types for it
        raise ValueError(
            f"{asked}, and torch {torch.__version__} is built for CPUs only; install a build for GPUs, or draft on a "
            "thread or cpu:1"
        )
    count = torch.cuda.device_count()
    if place.number >= count:
        raise ValueError(
            f"{asked}, and this process may use {count} GPU{'s' * (count != 1)}; "
            + (f"take cuda:{count - 1} at most" if count else "draft on a thread or cpu:1")
        )


def check_uses(place: Place | None, drafter: str, reads_texts: bool) -> None:
    """Refuse a GPU for a drafter that runs nothing there.

    Args:
        place: of the process; None for a thread.
        drafter: how an error calls it.
        reads_texts: as its options say.

    Raises:
        ValueError: if it reads nothing but texts.
    """
    if place is not None and place.device == "cuda" and reads_texts:
        raise ValueError(
            f"draft_on is cuda:{place.number}, and {drafter} reads nothing but texts, for which it uses no GPU; draft "
            "on a thread or cpu:1"
        )
