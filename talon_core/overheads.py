"""What rounds take besides the passes of the target and the layers of the drafter, as measured."""

from collections import deque
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any

import attrs

from talon_core.rounds import Span

LATEST = 32
"""Rounds that are remembered, of either kind."""

ASKED = ("guess", "reading", "layer", "inquiry")
"""What the drafter does before the target's pass: no part of what rounds take besides."""

ENOUGH = 16
"""Of so many rounds the longest is taken to be one in which the machine did something else."""

WAITING = 256
"""Rounds that wait until somebody asks, at most; of more the latest count."""


def _latest() -> deque[float]:
    return deque(maxlen=LATEST)


@attrs.define(eq=False)
class Overheads:
    """Seconds of the policy, the walk, the commit and what the drafter is told, in the latest rounds.

    Means, as what a round in a dozen plans for the others is paid for as well; but without the longest few, as a
    machine does something else now and then. While there are few of them it is the median.

    Of the policy's time, a layer takes what it is asked for that layer: how many candidates it wants, and which of
    them it chooses, the checks included.

    Rounds are noted, and looked at when somebody asks: most policies never do.

    Args:
        plain: of rounds in which the drafter was not asked.
        drafted: of the others, without their layers.
        layers: of a layer, in the mean over those of a round.
        ahead: of rounds with a draft whose passes were run ahead of them, without their layers.
        ahead_layers: of a layer of these, the drafter's pass among it, likewise.
        waiting: of rounds that nobody has looked at, see `add`.
    """

    _plain: deque[float] = attrs.field(factory=_latest)
    _drafted: deque[float] = attrs.field(factory=_latest)
    _layers: deque[float] = attrs.field(factory=_latest)
    _ahead: deque[float] = attrs.field(factory=_latest)
    _ahead_layers: deque[float] = attrs.field(factory=_latest)
    _waiting: deque[tuple[Sequence[Span], bool, float | None]] = attrs.field(factory=lambda: deque(maxlen=WAITING))

    def add(self, spans: Sequence[Span], ahead: bool = False, seconds: float | None = None) -> None:
        """Take note of a round, by what took time in it; one that was not verified says nothing.

        Args:
            spans: of the round.
            ahead: whether its passes, the drafter's, too, were run ahead of it.
            seconds: that it took, what is no span's among them; None if the spans are all that is known.
        """
        self._waiting.append((spans, ahead, seconds))

    def _learn(self) -> None:
        """Look at the rounds that wait."""
        while self._waiting:
            self._look(*self._waiting.popleft())

    def _look(self, spans: Sequence[Span], ahead: bool, seconds: float | None) -> None:
        verified = [span for span in spans if span.part == "verify"]
        if not verified:
            return
        drafts = [span for span in spans if span.part == "draft" and span.work in ASKED]
        layers = {span.layer for span in drafts if span.layer is not None}
        whole = max(span.end for span in spans) - min(span.start for span in spans) if seconds is None else seconds
        passes = sum(span.seconds for span in (*verified, *drafts))
        if not layers:
            self._plain.append(max(whole - passes, 0.0))
            return
        own = _of_layers(spans, layers)
        (self._ahead if ahead else self._drafted).append(max(whole - passes - own, 0.0))
        if ahead:
            own += sum(span.seconds for span in drafts if span.layer is not None)
        (self._ahead_layers if ahead else self._layers).append(own / len(layers))

    def of(self, drafted: bool) -> float | None:
        """Of a round in which the drafter is asked, or of one in which it is not; None if none was measured."""
        self._learn()
        seconds = self._drafted if drafted else self._plain
        return _usual(seconds) if seconds else None

    @property
    def of_layer(self) -> float | None:
        """Of a layer; None if none was measured."""
        self._learn()
        return _usual(self._layers) if self._layers else None

    def of_chain(self, layers: int) -> float | None:
        """Of a round whose passes were run ahead of it, with so many layers, their passes too; None if none was."""
        self._learn()
        return _usual(self._ahead) + layers * _usual(self._ahead_layers) if self._ahead else None

    @property
    def _all(self) -> tuple[deque[Any], ...]:
        return self._plain, self._drafted, self._layers, self._ahead, self._ahead_layers, self._waiting

    def copied(self) -> "Overheads":
        """The same, as it is now."""
        return Overheads(*[kept.copy() for kept in self._all])

    def clear(self) -> None:
        """Nothing is known any more."""
        for kept in self._all:
            kept.clear()


def _usual(seconds: Collection[float]) -> float:
    """The mean of some rounds without the longest few; of few rounds the median."""
    if len(seconds) < ENOUGH:
        return median(seconds)
    kept = sorted(seconds)[: -len(seconds) // ENOUGH]
    return sum(kept) / len(kept)


def _of_layers(spans: Sequence[Span], layers: Collection[int]) -> float:
    """Seconds that a round's layers take besides the drafter: from where the policy is asked how wide the first one is
    to where it has chosen of the last one, unless there was nothing to choose from.

    Args:
        spans: of the round.
        layers: the numbers of those that were drafted, at least one.
    """
    whole = [span for span in spans if span.layer in layers and span.part in ("draft", "policy")]
    begin, end = min(span.start for span in whole), max(span.end for span in whole)
    drafter = [span for span in spans if span.part == "draft" and begin <= span.start < end]
    return end - begin - sum(span.seconds for span in drafter)
