"""A monotone fit to seconds that were measured at several sizes: more of anything never costs less."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from statistics import median

import attrs
import numpy as np

from talon_core.tree_arrays import FloatArray

SWEEPS = 100
"""Of the projection on what rises along every axis, at most."""

LINES = 4096
"""Lines along the first axis that are remembered, and planes along the first two: who compares trees asks for many
sizes of one line, and who tries policies on many texts for the same lengths again."""

Sizes = tuple[int, ...]
Points = Mapping[Sizes, float]
"""Seconds by sizes, one for each axis."""


@attrs.frozen
class Error:
    """How far a fit is from points that it was not told of, as shares of what was measured there.

    Attributes:
        median: over the points that have a neighbour on either side along the first axis, each left out once.
        largest: likewise.
    """

    median: float
    largest: float


class Fit:
    """Seconds by sizes, on the grid of all sizes that were measured: the nearest by least squares that never falls.

    Between the lines of the grid it is interpolated. Beyond the last line of an axis the last step goes on, before the
    first one the first step, down to 0 at most. An axis of one line tells nothing of other sizes: they are taken to
    last as long.

    Args:
        points: at least one; where the grid has none, they are interpolated first.

    Attributes:
        axes: the sizes along each axis, rising.
        seconds: shape as the axes are long, float64, rising along each.
    """

    def __init__(self, points: Points) -> None:
        self.axes = tuple(tuple(sorted(set(along))) for along in zip(*points, strict=True))
        seconds = np.full([len(axis) for axis in self.axes], np.nan)
        for sizes, value in points.items():
            seconds[tuple(axis.index(size) for axis, size in zip(self.axes, sizes, strict=True))] = value
        for number, axis in enumerate(self.axes):
            for line in _lines(seconds, number):
                known = ~np.isnan(line)
                if known.any():
                    line[~known] = np.interp(np.array(axis)[~known], np.array(axis)[known], line[known])
        self.seconds: FloatArray = _rising(seconds)
        self._first = np.array(self.axes[0])
        self._plane = lru_cache(maxsize=LINES)(self._plane_at)
        self._line = lru_cache(maxsize=LINES)(self._line_at)

    def at(self, *sizes: float) -> float:
        """Seconds at these sizes, one for each axis."""
        first, *others = sizes
        return _on(self.axes[0], first, self._line(*others))

    def along(self, first: FloatArray, *others: float) -> FloatArray:
        """`at` for several sizes of the first axis, shape `(sizes,)`; to the bit what it says of each."""
        return self._on_lines(np.array(self._line(*others)), first)

    def along_each(self, first: FloatArray, second: FloatArray, *others: float) -> FloatArray:
        """`along` for several sizes of the second axis, shape `(second, sizes)`; to the bit what it says of each.

        For a fit of two axes or more.
        """
        values, axis = self._plane(*others), self.axes[1]
        if len(axis) == 1:
            lines = np.repeat(values, len(second), axis=1)
        else:
            place = np.clip(np.array(axis).searchsorted(second, side="right") - 1, 0, len(axis) - 2)
            start, end = (np.array(axis)[each] for each in (place, place + 1))
            low = values[:, place]
            lines = np.maximum(low + (second - start) / (end - start) * (values[:, place + 1] - low), 0.0)
            lines = np.maximum.accumulate(lines, axis=0)
        return self._on_lines(lines.T, first)

    def _on_lines(self, lines: FloatArray, first: FloatArray) -> FloatArray:
        """Seconds at sizes of the first axis, by some lines along it, shape `(..., sizes)`."""
        sizes = self._first
        if len(sizes) == 1:
            return np.repeat(lines, len(first), axis=-1)
        # no `np.clip`, which takes longer than all else here
        place = np.minimum(np.maximum(sizes.searchsorted(first, side="right") - 1, 0), len(sizes) - 2)
        share, low = (first - sizes[place]) / (sizes[place + 1] - sizes[place]), lines[..., place]
        found: FloatArray = np.maximum(low + share * (lines[..., place + 1] - low), 0.0)
        return found

    def _plane_at(self, *others: float) -> FloatArray:
        """Seconds along the first two axes, where the others have these sizes."""
        values = self.seconds
        for axis, size in zip(reversed(self.axes[2:]), reversed(others), strict=True):
            values = _between(values, *_step(axis, size))
        return values

    def _line_at(self, *others: float) -> list[float]:
        """Seconds along the first axis, where the others have these sizes."""
        if len(others) != len(self.axes) - 1:
            raise ValueError(f"a fit of {len(self.axes)} axes is asked with {1 + len(others)} sizes")
        along = self.seconds if not others else _between(self._plane(*others[1:]), *_step(self.axes[1], others[0]))
        line: list[float] = along.tolist()
        return line


def _step(axis: Sizes, size: float) -> tuple[int, float | None]:
    """On which step of an axis a size is, and how far along it; None where the axis has one line."""
    if len(axis) == 1:
        return 0, None
    place = min(max(bisect_right(axis, size) - 1, 0), len(axis) - 2)
    return place, (size - axis[place]) / (axis[place + 1] - axis[place])


def _between(values: FloatArray, place: int, share: float | None) -> FloatArray:
    """What rises along every axis where the last one, which is gone then, has a size on a step; see `_step`."""
    low = values[..., place]
    found: FloatArray = low if share is None else np.maximum(low + share * (values[..., place + 1] - low), 0.0)
    for along in range(found.ndim):  # two steps that go on beyond the grid may cross
        found = np.maximum.accumulate(found, axis=along)
    return found


def _on(axis: Sizes, size: float, line: list[float]) -> float:
    place, share = _step(axis, size)
    return line[0] if share is None else max(0.0, line[place] + share * (line[place + 1] - line[place]))


def _lines(values: FloatArray, axis: int) -> Iterator[FloatArray]:
    """Views of all lines along an axis."""
    across = np.moveaxis(values, axis, -1)
    for place in np.ndindex(across.shape[:-1]):
        yield across[place]


def _rising(values: FloatArray) -> FloatArray:
    """The nearest array by least squares that falls along no axis, by Dykstra's projections on what rises along one."""
    found = values.copy()
    steps = [np.zeros_like(values) for _ in range(values.ndim)]
    for _ in range(SWEEPS):
        before = found.copy()
        for axis, step in enumerate(steps):
            wanted = found + step
            found = wanted.copy()
            for line in _lines(found, axis):
                line[:] = _pooled(line.tolist())
            step[:] = wanted - found
        if np.allclose(before, found, rtol=1e-9, atol=0.0):
            break
    for axis in range(found.ndim):
        found = np.maximum.accumulate(found, axis=axis)
    return found


def _pooled(line: list[float]) -> list[float]:
    """The nearest line that never falls: neighbours that do are put together (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in line:
        pool = value, 1
        while pools and pools[-1][0] > pool[0]:
            before, count = pools.pop()
            pool = (before * count + pool[0] * pool[1]) / (count + pool[1]), count + pool[1]
        pools.append(pool)
    return [value for value, count in pools for _ in range(count)]


def error(points: Points) -> Error | None:
    """How well points tell of each other; None if none has a neighbour on either side along the first axis."""
    found = []
    for sizes, seconds in points.items():
        line = [other[0] for other in points if other[1:] == sizes[1:]]
        if min(line) < sizes[0] < max(line) and seconds > 0:
            rest = Fit({other: value for other, value in points.items() if other != sizes})
            found.append(abs(rest.at(*sizes) - seconds) / seconds)
    return Error(median(found), max(found)) if found else None
