"""What this machine takes for a pass: told to policies, so that they can weigh a node against its price."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeVar

import attrs

LATEST = 32
"""Passes of one size that are remembered: the machine may be busier today than a minute ago."""

OLD = 512
"""After so many passes of its kind a size that has not come again is forgotten: it may have been a slow moment."""


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

    def accept(self, nodes: int) -> float | None:
        """The walk of the rule over one tree, where the target does not walk by itself; None if nothing is known.

        Args:
            nodes: of the tree, at least 1.
        """
        return None

    def commit(self, tokens: int) -> float | None:
        """Keeping what a round has emitted, in the target's cache and in the books; None if nothing is known.

        Args:
            tokens: that one sequence has emitted, at least 1.
        """
        return None

    def tell(self, tokens: int) -> float | None:
        """What the drafter takes to learn of what a round has emitted; None if nothing is known.

        That is its `commit`, and what the first layer of the next round takes more than another layer of one row.

        Args:
            tokens: that one sequence has emitted, at least 1.
        """
        return None

    def read(self, tokens: int) -> float | None:
        """Reading a prompt, by the target and the drafter; None if nothing is known.

        Args:
            tokens: of the prompt, at least 1.
        """
        return None


@attrs.frozen
class _Curve:
    """A rising line through points.

    Attributes:
        sizes: rising.
        seconds: rising.
        slope: below the smallest size.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    slope: float

    def at(self, size: int) -> float:
        sizes, seconds = self.sizes, self.seconds
        place = bisect_left(sizes, size)
        if place < len(sizes) and sizes[place] == size:
            return seconds[place]
        if place == 0:
            return max(0.0, seconds[0] - self.slope * (sizes[0] - size))
        if len(sizes) == 1:
            return seconds[0]
        right = min(place, len(sizes) - 1)
        slope = (seconds[right] - seconds[right - 1]) / (sizes[right] - sizes[right - 1])
        return seconds[right - 1] + slope * (size - sizes[right - 1])


class _Line:
    """Seconds by size, as they were measured: a rising line through the median of each size.

    Medians that fall where they should rise are put together (isotonic regression, pool adjacent violators), each
    counted as often as it was measured. Above the largest size the last step's slope goes on; below the smallest, that
    of the straight line through all of them. Where one size is all that is known, a larger pass is taken to last as
    long, and a smaller one in proportion: who looks for what pays then tries both.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._last: dict[int, int] = {}  # the pass at which a size was measured last
        self._passes = 0
        self._curve: _Curve | None = None

    def add(self, size: int, seconds: float) -> None:
        self._passes += 1
        self._times.setdefault(size, deque(maxlen=LATEST)).append(seconds)
        self._last[size] = self._passes
        self._curve = None

    @property
    def only_size(self) -> int | None:
        """The size that is all that is known; None if there are others."""
        return next(iter(self._times)) if len(self._times) == 1 else None

    def at(self, size: int) -> float:
        curve = self._curve
        if curve is None:
            curve = self._curve = self._drawn()
        return curve.at(size)

    def _drawn(self) -> _Curve:
        fresh = [size for size, last in self._last.items() if last > self._passes - OLD]
        if len(fresh) > 1:
            self._times = {size: self._times[size] for size in fresh}
            self._last = {size: self._last[size] for size in fresh}
        sizes = sorted(self._times)
        medians = [median(self._times[size]) for size in sizes]
        weights = [len(self._times[size]) for size in sizes]
        pools: list[tuple[float, int, int]] = []  # seconds, passes, sizes
        for seconds, count in zip(medians, weights, strict=True):
            pool = seconds, count, 1
            while pools and pools[-1][0] >= pool[0]:
                before, passes, of = pools.pop()
                together = passes + pool[1]
                pool = (before * passes + pool[0] * pool[1]) / together, together, of + pool[2]
            pools.append(pool)
        rising = tuple(seconds for seconds, _, of in pools for _ in range(of))
        slope = _slope(sizes, medians, weights) if len(sizes) > 1 else medians[0] / sizes[0]
        return _Curve(tuple(sizes), rising, max(0.0, slope))


def _slope(sizes: Sequence[int], seconds: Sequence[float], weights: Sequence[int]) -> float:
    """Of the straight line through points at different sizes, each as often as its weight says, by least squares."""
    total = sum(weights)
    middle = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / total
    spread = sum(weight * (size - middle) ** 2 for size, weight in zip(sizes, weights, strict=True))
    along = zip(sizes, seconds, weights, strict=True)
    return sum(weight * (size - middle) * second for size, second, weight in along) / spread


class MeasuredCosts(Costs):
    """Costs that are measured while one decodes: the engine tells it of every pass.

    The latest passes of each size are remembered, for contexts and batches by powers of two, and their medians make a
    line, on which more never costs less. Where one size at most is known of a batch and context, the nearest line of
    which more is known is taken, raised or lowered to meet it.
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
        return _at(self._verified, wanted, nodes, lambda kind: [abs(a - b) for a, b in zip(kind, wanted, strict=True)])

    def draft(self, rows: int, width: int) -> float | None:
        wanted = _power(width)
        return _at(self._drafted, wanted, rows, lambda kind: abs(kind - wanted))


def _power(size: int) -> int:
    """The power of two that a size reaches."""
    return max(size, 1).bit_length()


Kind = TypeVar("Kind")


def _at(lines: Mapping[Kind, _Line], wanted: Kind, size: int, distance: Callable[[Kind], Any]) -> float | None:
    """Seconds for a size on the line of a kind; None if there is no line at all."""
    own = lines.get(wanted)
    only = own.only_size if own is not None else None
    if own is not None and only is None:
        return own.at(size)
    longer = [kind for kind, line in lines.items() if line.only_size is None]
    if not longer:
        return lines[min(lines, key=distance)].at(size) if lines else None
    near = lines[min(longer, key=distance)]
    if own is None or only is None or not near.at(only):
        return near.at(size)
    return near.at(size) * own.at(only) / near.at(only)
