"""What this machine takes for a pass: told to policies, so that they can weigh a node against its price."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, TypeVar

LATEST = 32
"""Passes of one kind that are remembered: the machine may be busier today than a minute ago."""


class Costs(ABC):
    """Seconds of passes on one machine, with one target and one drafter."""

    @abstractmethod
    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        """The target's pass over trees; None if nothing is known yet.

        Args:
            nodes: of all trees together, their roots included, at least 1.
            context: committed tokens of the longest text.
            batch: sequences that share the pass.
        """

    @abstractmethod
    def draft(self, rows: int, width: int) -> float | None:
        """A layer of the drafter; None if nothing is known yet.

        Args:
            rows: frontier nodes of all trees together, at least 1.
            width: candidates asked for after each.
        """


class MeasuredCosts(Costs):
    """Costs that are measured while one decodes: the engine tells it of every pass.

    Passes are remembered by powers of two of their sizes, the latest of each kind, and their median counts. Between
    kinds a line is drawn, and more never costs less. Beyond what was seen, the last step's slope goes on.
    """

    def __init__(self) -> None:
        self._verified: dict[tuple[int, int], dict[int, deque[float]]] = defaultdict(dict)  # by (batch, context)
        self._drafted: dict[int, dict[int, deque[float]]] = defaultdict(dict)  # by width

    def verified(self, nodes: int, context: int, batch: int, seconds: float) -> None:
        """A pass of the target took so long; arguments as for `verify`."""
        _remember(self._verified[_power(batch), _power(context)], nodes, seconds)

    def drafted(self, rows: int, width: int, seconds: float) -> None:
        """A layer of the drafter took so long; arguments as for `draft`."""
        _remember(self._drafted[_power(width)], rows, seconds)

    def forget(self) -> None:
        """Nothing is known any more."""
        self._verified.clear()
        self._drafted.clear()

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        wanted = _power(batch), _power(context)
        return _at(self._verified, nodes, key=lambda kind: [abs(a - b) for a, b in zip(kind, wanted, strict=True)])

    def draft(self, rows: int, width: int) -> float | None:
        wanted = _power(width)
        return _at(self._drafted, rows, key=lambda kind: abs(kind - wanted))


def _power(size: int) -> int:
    """The power of two that a size reaches."""
    return max(size, 1).bit_length()


def _remember(known: dict[int, deque[float]], size: int, seconds: float) -> None:
    known.setdefault(size, deque(maxlen=LATEST)).append(seconds)


Kind = TypeVar("Kind")


def _at(known: Mapping[Kind, dict[int, deque[float]]], size: int, key: Callable[[Kind], Any]) -> float | None:
    if not known:
        return None
    return _along(known[min(known, key=key)].items(), size)


def _along(seen: Iterable[tuple[int, deque[float]]], size: int) -> float:
    """Seconds for a size, on the rising line through what was seen."""
    sizes: list[int] = []
    seconds: list[float] = []
    for one, times in sorted(seen):
        sizes.append(one)
        seconds.append(max(median(times), seconds[-1] if seconds else 0.0))
    place = bisect_left(sizes, size)
    if place < len(sizes) and sizes[place] == size:
        return seconds[place]
    if len(sizes) == 1 or place == 0:
        return seconds[0]
    right = min(place, len(sizes) - 1)
    slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
    return seconds[right - 1] + slope * (size - sizes[right - 1])
