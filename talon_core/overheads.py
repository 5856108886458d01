"""What rounds take besides the passes of the target and the layers of the drafter, as measured."""

from collections import deque
from collections.abc import Sequence
from statistics import median

import attrs

from talon_core.rounds import Span

LATEST = 32
"""Rounds that are remembered, of either kind."""


def _latest() -> deque[float]:
    return deque(maxlen=LATEST)


@attrs.define(eq=False)
class Overheads:
    """Seconds of the policy, the walk, the commit and what the drafter is told, in the latest rounds.

    Medians, because a machine that does something else for a moment takes long over a few of them.

    Attributes:
        plain: of rounds in which the drafter was not asked.
        drafted: of the others.
    """

    plain: deque[float] = attrs.field(factory=_latest)
    drafted: deque[float] = attrs.field(factory=_latest)

    def learn(self, spans: Sequence[Span]) -> None:
        """Take note of a round, by what took time in it; one that was not verified says nothing."""
        verified = [span for span in spans if span.part == "verify"]
        if not verified:
            return
        layers = [span for span in spans if span.part == "draft" and span.start < verified[0].start]
        whole = max(span.end for span in spans) - min(span.start for span in spans)
        passes = sum(span.seconds for span in (*verified, *layers))
        (self.drafted if layers else self.plain).append(max(whole - passes, 0.0))

    def of(self, drafted: bool) -> float | None:
        """Of a round in which the drafter is asked, or of one in which it is not; None if none was measured."""
        seconds = self.drafted if drafted else self.plain
        return median(seconds) if seconds else None

    def copied(self) -> "Overheads":
        """The same, as it is now."""
        return Overheads(self.plain.copy(), self.drafted.copy())

    def clear(self) -> None:
        """Nothing is known any more."""
        self.plain.clear()
        self.drafted.clear()
