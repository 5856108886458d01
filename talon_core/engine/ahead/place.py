"""Where drafting goes on while the target verifies: a thread of this process, or a process with cores or a GPU."""

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
