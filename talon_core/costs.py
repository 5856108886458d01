"""What this machine takes for a pass: told to policies, so that they can weigh a node against its price."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
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


class _Line:
    """Seconds by size, as they were measured: a rising line through the median of each size.

    Medians that fall where they should rise are put together (isotonic regression, pool adjacent violators), each
    counted as often as it was measured. Above the largest size the last step's slope goes on; below the smallest, that
    of the straight line through all of them.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}  # of the sizes that were not measured since
        self._sizes: list[int] = []  # of the line, rising; empty until somebody asks
        self._seconds: list[float] = []
        self._slope = 0.0

    def add(self, size: int, seconds: float) -> None:
        self._times.setdefault(size, deque(maxlen=LATEST)).append(seconds)
        self._medians.pop(size, None)
        self._sizes = []

    def _draw(self) -> None:
        """Make the line of what was measured."""
        self._medians |= {size: median(times) for size, times in self._times.items() if size not in self._medians}
        self._sizes = sorted(self._medians)
        weights = [len(self._times[size]) for size in self._sizes]
        self._slope = max(0.0, _slope(self._sizes, [self._medians[size] for size in self._sizes], weights))
        pools: list[tuple[float, int, int]] = []  # seconds, passes, sizes
        for size, weight in zip(self._sizes, weights, strict=True):
            seconds, count, sizes = self._medians[size], weight, 1
            while pools and pools[-1][0] >= seconds:
                before, passes, of = pools.pop()
                seconds = (before * passes + seconds * count) / (passes + count)
                count, sizes = count + passes, sizes + of
            pools.append((seconds, count, sizes))
        self._seconds = [seconds for seconds, _, sizes in pools for _ in range(sizes)]

    def at(self, size: int) -> float:
        if not self._sizes:
            self._draw()
        sizes, seconds = self._sizes, self._seconds
        place = bisect_left(sizes, size)
        if place < len(sizes) and sizes[place] == size:
            return seconds[place]
        if place == 0:
            return max(0.0, seconds[0] - self._slope * (sizes[0] - size))
        if len(sizes) == 1:
            return seconds[0]
        right = min(place, len(sizes) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right - 1] + slope * (size - sizes[right - 1])


def _slope(sizes: list[int], seconds: list[float], weights: list[int]) -> float:
    """Of the straight line through so many points, by least squares; 0 where there is one size."""
    total = sum(weights)
    middle = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / total
    spread = sum(weight * (size - middle) ** 2 for size, weight in zip(sizes, weights, strict=True))
    if not spread:
        return 0.0
    along = zip(sizes, seconds, weights, strict=True)
    return sum(weight * (size - middle) * second for size, second, weight in along) / spread


class MeasuredCosts(Costs):
    """Costs that are measured while one decodes: the engine tells it of every pass.

    The latest passes of each size are remembered, for contexts and batches by powers of two, and their medians make a
    line, on which more never costs less.
    """

    def __init__(self) -> None:
        self._verified: dict[tuple[int, int], _Line] = defaultdict(_Line)  # by (batch, context)
        self._drafted: dict[int, _Line] = defaultdict(_Line)  # by width

    def verified(self, nodes: int, context: int, batch: int, seconds: float) -> None:
        """A pass of the target took so long; arguments as for `verify`."""
        self._verified[_power(batch), _power(context)].add(nodes, seconds)

    def drafted(self, rows: int, width: int, seconds: float) -> None:
        """A layer of the drafter took so long; arguments as for `draft`."""
        self._drafted[_power(width)].add(rows, seconds)

    def forget(self) -> None:
        """Nothing is known any more."""
        self._verified.clear()
        self._drafted.clear()

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        wanted = _power(batch), _power(context)
        line = _nearest(self._verified, wanted, lambda kind: [abs(a - b) for a, b in zip(kind, wanted, strict=True)])
        return line.at(nodes) if line is not None else None

    def draft(self, rows: int, width: int) -> float | None:
        wanted = _power(width)
        line = _nearest(self._drafted, wanted, lambda kind: abs(kind - wanted))
        return line.at(rows) if line is not None else None


def _power(size: int) -> int:
    """The power of two that a size reaches."""
    return max(size, 1).bit_length()


Kind = TypeVar("Kind")


def _nearest(lines: Mapping[Kind, _Line], wanted: Kind, distance: Callable[[Kind], Any]) -> _Line | None:
    if not lines:
        return None
    return lines[wanted if wanted in lines else min(lines, key=distance)]
