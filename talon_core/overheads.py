"""What rounds take besides the passes of the target and the layers of the drafter, as measured."""

from collections import deque
from collections.abc import Sequence
from statistics import median

import attrs

from talon_core.rounds import Span

LATEST = 32
"""Rounds that are remembered, of either kind."""

WAITING = 256
"""Rounds that wait until somebody asks, at most; of more the latest count."""


def _latest() -> deque[float]:
    return deque(maxlen=LATEST)


@attrs.define(eq=False)
class Overheads:
    """Seconds of the policy, the walk, the commit and what the drafter is told, in the latest rounds.

    Medians, because a machine that does something else for a moment takes long over a few of them.

    Of the policy's time, a layer takes what it is asked for that layer: how many candidates it wants, and which of
    them it chooses, the checks included.

    Rounds are noted, and looked at when somebody asks: most policies never do.

    Args:
        plain: of rounds in which the drafter was not asked.
        drafted: of the others, without their layers.
        layers: of a layer, in the mean over those of a round.
        waiting: what took time in rounds that nobody has looked at.
    """

    _plain: deque[float] = attrs.field(factory=_latest)
    _drafted: deque[float] = attrs.field(factory=_latest)
    _layers: deque[float] = attrs.field(factory=_latest)
    _waiting: deque[Sequence[Span]] = attrs.field(factory=lambda: deque(maxlen=WAITING))

    def add(self, spans: Sequence[Span]) -> None:
        """Take note of a round, by what took time in it; one that was not verified says nothing."""
        self._waiting.append(spans)

    def _learn(self) -> None:
        """Look at the rounds that wait."""
        while self._waiting:
            self._look(self._waiting.popleft())

    def _look(self, spans: Sequence[Span]) -> None:
        verified = [span for span in spans if span.part == "verify"]
        if not verified:
            return
        before = [span for span in spans if span.start <= verified[0].start]
        drafts, policy = ([span for span in before if span.part == part] for part in ("draft", "policy"))
        last = max((span.start for span in policy), default=verified[0].start)
        layers = [span for span in drafts if span.start < last]  # what is asked behind the policy's last answer is none
        whole = max(span.end for span in spans) - min(span.start for span in spans)
        passes = sum(span.seconds for span in (*verified, *drafts))
        if not layers:
            self._plain.append(max(whole - passes, 0.0))
            return
        own = _of_layers(layers, policy)
        self._drafted.append(max(whole - passes - own, 0.0))
        self._layers.append(own / len(layers))

    def of(self, drafted: bool) -> float | None:
        """Of a round in which the drafter is asked, or of one in which it is not; None if none was measured."""
        self._learn()
        seconds = self._drafted if drafted else self._plain
        return median(seconds) if seconds else None

    @property
    def of_layer(self) -> float | None:
        """Of a layer; None if none was measured."""
        self._learn()
        return median(self._layers) if self._layers else None

    def copied(self) -> "Overheads":
        """The same, as it is now."""
        return Overheads(self._plain.copy(), self._drafted.copy(), self._layers.copy(), self._waiting.copy())

    def clear(self) -> None:
        """Nothing is known any more."""
        for kept in (self._plain, self._drafted, self._layers, self._waiting):
            kept.clear()


def _of_layers(layers: Sequence[Span], policy: Sequence[Span]) -> float:
    """Seconds that a round's layers take besides the drafter.

    Args:
        layers: of the drafter, in their order, at least one.
        policy: the policy's spans, in their order.
    """
    first, last = layers[0], layers[-1]
    seconds = last.start - first.start - sum(span.seconds for span in layers[:-1])
    before = [span for span in policy if span.end <= first.start]
    if before:  # its latest answer is how many candidates it wants
        seconds += first.start - before[-1].start
    behind = [span for span in policy if span.start >= last.end]
    if len(behind) > 1:  # of the last layer's candidates it has chosen some, unless there were none; it has finished
        seconds += behind[0].end - last.end
    return seconds
