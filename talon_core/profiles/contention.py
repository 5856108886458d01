"""How many times as long passes take while somebody else works, worked out from when they began and ended."""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import attrs
import numpy as np

from talon_core.defaults import DEFAULT_PLACE
from talon_core.rounds import Span

BUSY = 0.9
"""A pass with fewer threads takes less than this only where the cores were not free."""


class Took(NamedTuple):
    """A pass of the target, or a layer of the drafter.

    Attributes:
        span: when it began and ended.
        alone: seconds that it takes where nobody else works.
    """

    span: Span
    alone: float


def slowed(work: Sequence[Took], other: Sequence[Span]) -> float:
    """How many times as long work takes in the time in which the other one works, too; at least 1.

    What takes `c` alone does `o / f` of it in the `o` seconds that both work, and the rest of it in the rest of its
    `t` seconds: over all of them, `c = o / f + (t - o)`.

    Args:
        work: what is slowed down.
        other: when the other one worked, none of them at the same time; in any order.
    """
    began = np.array([span.start for span in other])
    ended = np.array([span.end for span in other])
    alone = took = both = 0.0
    for span, expected in work:
        shared = np.minimum(ended, span.end) - np.maximum(began, span.start)
        both += float(shared.clip(min=0.0).sum())
        alone, took = alone + expected, took + span.seconds
    done = alone - (took - both)
    return max(1.0, both / done) if both and done > 0 else 1.0


@attrs.frozen
class Contention:
    """What a target and a drafter cost each other.

    Attributes:
        draft_on: where the drafter works.
        threads: of the target beside it.
        all_threads: that it has where they take turns.
        pass_seconds: of a pass alone, with all threads, the median.
        pass_seconds_beside: of a pass alone, with those that it has beside the drafter, likewise.
        layer_seconds: of a layer of the drafter alone, likewise.
        target: how many times as long a pass takes while the drafter works, with as many threads.
        drafter: how many times as long a layer takes while the target works.
    """

    draft_on: str
    threads: int
    all_threads: int
    pass_seconds: float
    pass_seconds_beside: float
    layer_seconds: float
    target: float
    drafter: float

    @property
    def shared(self) -> float:
        """How many times as long a pass takes beside the drafter as with all threads; at least 1."""
        return max(1.0, self.target * self.pass_seconds_beside / self.pass_seconds) if self.pass_seconds else 1.0

    @property
    def said(self) -> str:
        """It in a sentence."""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        where = "in a thread" if self.draft_on == DEFAULT_PLACE else f"on {self.draft_on}"
        fewer = ""
        if self.threads < self.all_threads:
            slower = self.pass_seconds_beside / self.pass_seconds
            fewer = f", where {threads} in the place of {self.all_threads} make it {slower:.2f} times as long already"
        busy = "; something else kept the cores while this was measured"
        kept = busy if self.pass_seconds_beside < BUSY * self.pass_seconds else ""
        return (
            f"beside the drafter {where} a pass of the target takes {self.target:.2f} times as long{fewer}; "
            f"beside the target a layer of the drafter takes {self.drafter:.2f} times as long. With a profile of "
            f"{self.all_threads} thread{'s' * (self.all_threads != 1)} that is --shared {self.shared:.2f} "
            f"--drafter-shared {self.drafter:.2f}{kept}"
        )

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, as `talon profile beside --json` prints it."""
        return {**attrs.asdict(self), "shared": self.shared, "said": self.said}


@attrs.frozen
class Stretches:
    """What was seen of both.

    Attributes:
        passes: of the target alone, with all threads, in seconds.
        passes_fewer: of the target alone, with those that it has beside the drafter, likewise.
        layers: of the drafter alone, by rows and width, likewise.
        passes_beside: of the target beside the drafter, those that count.
        all_passes_beside: those that do not, too.
        layers_beside: of the drafter beside the target, with their rows and width.
        calls_beside: all that the drafter did then, its layers among it.
    """

    passes: list[float] = attrs.field(factory=list)
    passes_fewer: list[float] = attrs.field(factory=list)
    layers: dict[tuple[int, int], list[float]] = attrs.field(factory=dict)
    passes_beside: list[Span] = attrs.field(factory=list)
    all_passes_beside: list[Span] = attrs.field(factory=list)
    layers_beside: list[tuple[tuple[int, int], Span]] = attrs.field(factory=list)
    calls_beside: list[Span] = attrs.field(factory=list)

    def contention(self, draft_on: str, threads: int, all_threads: int) -> Contention:
        """What they cost each other; arguments as `Contention` has them.

        Layers of sizes that were not seen alone do not count.

        Raises:
            ValueError: if too little was seen of one of them.
        """
        if not (self.passes and self.passes_fewer and self.passes_beside and self.layers):
            raise ValueError("the target or the drafter made no pass to be timed; decode a longer text")
        alone = median(self.passes_fewer)
        sizes = {size: median(seconds) for size, seconds in self.layers.items()}
        layers = [Took(span, sizes[size]) for size, span in self.layers_beside if size in sizes]
        return Contention(
            draft_on=draft_on,
            threads=threads,
            all_threads=all_threads,
            pass_seconds=median(self.passes),
            pass_seconds_beside=alone,
            layer_seconds=median([one for seconds in self.layers.values() for one in seconds]),
            target=slowed([Took(span, alone) for span in self.passes_beside], self.calls_beside),
            drafter=slowed(layers, self.all_passes_beside),
        )
