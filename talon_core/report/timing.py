"""Where time goes: of whole texts by part, and of a typical round stretch by stretch."""

import statistics
from collections.abc import Sequence
from typing import Any

import attrs

from talon_core.bench.measurement import Measurement
from talon_core.report.figures import RoundTime, TimePerToken
from talon_core.report.lanes import Timeline, stretches, timeline_of
from talon_core.rounds import PARTS, Round, Span

OF_TEXTS = ("prefill", *PARTS, "other")
"""The parts of a text's time, as in `Stats`."""


def time_per_token(method: str, of: Sequence[Measurement]) -> TimePerToken | None:
    """Milliseconds for each new token, by part; None where some text's parts are not known."""
    seconds: dict[str, list[Any]] = {part: [each.stats.get(f"{part}_seconds") for each in of] for part in OF_TEXTS}
    tokens = sum(each.stats["new_tokens"] for each in of)
    if not tokens or any(None in known for known in seconds.values()):
        return None
    return TimePerToken(method, {part: 1000 * sum(known) / tokens for part, known in seconds.items()})


@attrs.frozen
class _Timed:
    """A round's time."""

    spans: tuple[Span, ...]
    parts: tuple[float, ...]
    nodes: int
    tokens: int

    @property
    def total(self) -> float:
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)


class RoundTimes:
    """The times of one method's rounds.

    Attributes:
        lanes: rounds from the middle of the first text, of those that took time that is known; None without one.
    """

    def __init__(self) -> None:
        self._rounds: list[_Timed] = []
        self.lanes: Timeline | None = None

    def add(self, rounds: Sequence[Round]) -> None:
        """Note the rounds of one text; those without spans took no time that is known."""
        known = [one for one in rounds if one.spans]
        if known and self.lanes is None:
            self.lanes = timeline_of(known).middle()
        for one in known:
            spans = tuple(span for span in one.spans if span.part in PARTS)  # what is beside them is no part of a round
            if spans:
                parts = tuple(getattr(one, f"{part}_seconds") for part in PARTS)
                self._rounds.append(_Timed(spans, parts, len(one.tree), len(one.tokens)))

    def summary(self, method: str) -> RoundTime | None:
        """Medians, and the round that is nearest to them; None if there is no round."""
        if not self._rounds:
            return None
        medians = [statistics.median(parts) for parts in zip(*(one.parts for one in self._rounds), strict=True)]
        total = statistics.median(one.total for one in self._rounds)

        def distance(one: _Timed) -> float:
            parts: float = sum(abs(own - median) for own, median in zip(one.parts, medians, strict=True))
            return parts + abs(one.total - total)

        typical = min(self._rounds, key=distance)
        milliseconds = {part: 1000 * median for part, median in zip(PARTS, medians, strict=True)}
        found = stretches(typical.spans, min(span.start for span in typical.spans))
        return RoundTime(method, len(self._rounds), milliseconds, 1000 * total, found, typical.nodes, typical.tokens)
