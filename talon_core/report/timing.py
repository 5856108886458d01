"""Where time goes: of whole texts by part, and of a typical round stretch by stretch."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from talon_core.bench.measurement import Measurement
from talon_core.report.figures import RoundTime, Stretch, TimePerToken
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
    """The times of one method's rounds."""

    def __init__(self) -> None:
        self._rounds: list[_Timed] = []

    def add(self, rounds: Iterable[Round]) -> None:
        """Note the rounds of one text; those without spans took no time that is known."""
        for one in rounds:
            if one.spans:
                parts = tuple(getattr(one, f"{part}_seconds") for part in PARTS)
                self._rounds.append(_Timed(one.spans, parts, len(one.tree), len(one.tokens)))

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
        stretches = _stretches(typical.spans)
        return RoundTime(
            method, len(self._rounds), milliseconds, 1000 * total, stretches, typical.nodes, typical.tokens
        )


def _stretches(spans: Sequence[Span]) -> list[Stretch]:
    begin = min(span.start for span in spans)
    verified = next((span.start for span in spans if span.part == "verify"), float("inf"))
    # a policy looks at every layer; what a drafter does between its last look and the pass is an inquiry
    shaped = max((span.start for span in spans if span.part == "policy"), default=float("inf"))
    layers = 0
    found = []
    for span in spans:
        name = span.part
        if span.part == "draft" and shaped < span.start < verified:
            name = "the drafter asks beside the tree"
        elif span.part == "draft" and span.start < verified:
            layers += 1
            name = f"draft layer {layers}"
        elif span.part == "draft":
            name = "the drafter reads what was accepted"
        found.append(Stretch(span.part, 1000 * (span.start - begin), 1000 * (span.end - begin), name))
    return found
