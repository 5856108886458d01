"""The arrays that trees are made of: small, on the host, in memory that nobody can write to."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BitArray = NDArray[np.uint32]
AnyArray = TypeVar("AnyArray", bound=NDArray[Any])


def ints(values: Any) -> IntArray:
    """A new read-only array, int64, at least one axis; it shares the memory of one that was made here."""
    return _kept(values, np.int64)


def floats(values: Any) -> FloatArray:
    """A new read-only array, float64, at least one axis; it shares the memory of one that was made here."""
    return _kept(values, np.float64)


SORTED = 256
"""Numbers up to which sorting all of them is as fast as finding first what can be among the highest."""


def highest(values: FloatArray, count: int) -> IntArray:
    """The places of the `count` largest numbers, largest first; of equals the earlier is first, and NaN is last.

    Args:
        values: shape `(numbers,)`.
        count: at most.

    Returns:
        Shape `(min(count, numbers),)`, int64.
    """
    falling, count = -values, int(count)
    if len(falling) > SORTED and 0 < count < len(falling):
        ends = falling.copy()
        ends.partition(count - 1)
        (found,) = (~(falling > ends[count - 1])).nonzero()
        best: IntArray = found[falling[found].argsort(kind="stable")[:count]]
        return best
    return falling.argsort(kind="stable")[: max(count, 0)]


def highest_of_each(values: FloatArray, held: IntArray, counts: IntArray) -> IntArray:
    """The places of the largest numbers of each group, group by group, as `highest` finds those of one.

    Args:
        values: more than minus infinity, group by group, shape `(numbers,)`.
        held: how many belong to each group, shape `(groups,)`.
        counts: how many of each are wanted at most, shape `(groups,)`.

    Returns:
        Shape `(found,)`, int64.
    """
    groups, most = len(held), int(held.max(initial=0))
    wanted = np.minimum(np.maximum(counts, 0), held)
    if most * groups > SPARSE * len(values):
        return _by_group(values, held)[places_of(np.cumsum(held) - held, wanted)]
    count = int(wanted.max(initial=0))
    if not 0 < MANY * count < most:
        return _first_of_each(_side_by_side(values, held), held, wanted)
    (among,) = among_highest(values, held, count).nonzero()
    fewer = np.minimum(held, count)
    found: IntArray = among[_first_of_each(_side_by_side(values[among], fewer), fewer, wanted)]
    return found


def _first_of_each(rows: FloatArray, held: IntArray, wanted: IntArray) -> IntArray:
    """The places, among the numbers of all groups, of the lowest of each row, lowest first: `wanted` of the `held`."""
    order = _sorted_rows(rows)
    order += (np.cumsum(held) - held)[:, None]
    found: IntArray = order[np.arange(rows.shape[1]) < wanted[:, None]]
    return found


def _side_by_side(values: FloatArray, held: IntArray) -> FloatArray:
    """Falling numbers of groups as rising rows, padding behind them, shape `(groups, most)`."""
    groups, most = len(held), int(held.max(initial=0))
    if most * groups == len(values):
        return -values.reshape(groups, most)
    rows = np.full((groups, most), np.inf)
    rows[np.arange(most) < held[:, None]] = -values
    return rows


def among_highest(values: FloatArray, held: IntArray, count: int) -> NDArray[np.bool_]:
    """Which of some numbers `highest_of_each` finds, where as many of each group are wanted; shape `(numbers,)`.

    Args:
        values: as there, and so is `held`.
        count: how many of each group at most, at least 1.
    """
    found = np.ones(len(values), dtype=bool)
    more = held > count  # all numbers of the others are found
    if more.any():
        asked, of = np.repeat(more, held), held[more]
        rows = _side_by_side(values[asked], of)
        good = rows <= np.partition(rows, count - 1, axis=1)[:, count - 1, None]
        (tied,) = (good.sum(axis=1) > count).nonzero()  # too many are as large as the last one
        good[tied] = rows[tied].argsort(axis=1, kind="stable").argsort(axis=1) < count
        found[asked] = good[np.arange(rows.shape[1]) < of[:, None]]
    return found


def lowest_of_rows(rows: FloatArray, count: int) -> tuple[IntArray, FloatArray]:
    """The places of the `count` lowest numbers of each row, lowest first, and these; of equals the earlier is first.

    Args:
        rows: shape `(rows, width)`; of those that are infinite, the places are any.
        count: at least 1.

    Returns:
        Shape `(rows, least)`, where that is `count`, or what the rows have that are finite at most.
    """
    if rows.shape[1] <= 2 * count:
        order = rows.argsort(axis=1, kind="stable")[:, :count]
        return order, taken(rows, order)
    ends = np.partition(rows, count - 1, axis=1)[:, count - 1 : count]
    found = (rows <= ends) & (rows < np.inf)
    held = found.sum(axis=1)
    low = np.arange(max(int(held.max(initial=0)), 1)) < held[:, None]
    places, values = np.zeros(low.shape, dtype=np.int64), np.full(low.shape, np.inf)
    places[low], values[low] = found.nonzero()[1], rows[found]
    order = values.argsort(axis=1, kind="stable")[:, :count]
    return taken(places, order), taken(values, order)


def taken(rows: AnyArray, places: IntArray) -> AnyArray:
    """`np.take_along_axis` along each row of few, in a part of the time.

    Args:
        rows: shape `(rows, width)`.
        places: in each of them, shape `(rows, places)`.
    """
    found: Any = rows.ravel().take(places + rows.shape[1] * np.arange(len(rows))[:, None])
    return found  # type: ignore[no-any-return]


MANY = 3
"""Where a group has more than so many times the numbers that are wanted, those that can be among them are found first
and these alone are sorted."""

SPARSE = 4
"""How many times as large as its numbers a rectangle of them may be that is sorted row by row."""


def _sorted_rows(rows: FloatArray) -> IntArray:
    """`rows.argsort(axis=1, kind="stable")`; numbers that are the same are few, or infinite."""
    # to sort them in a stable way takes many times as long
    order = rows.argsort(axis=1)
    ranked = taken(rows, order)
    (again,) = ((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] < np.inf)).any(axis=1).nonzero()
    order[again] = rows[again].argsort(axis=1, kind="stable")
    return order


def _by_group(values: FloatArray, held: IntArray) -> IntArray:
    """The order of groups, in each of them of falling values, and of equals the earlier is first."""
    # see `_sorted_rows`
    groups = np.repeat(np.arange(len(held)), held)
    order = (-values).argsort()
    order = order[by_number(groups[order], len(held))]
    ranked, of = values[order], groups[order]
    tied = (ranked[1:] == ranked[:-1]) & (of[1:] == of[:-1])
    if tied.any():
        behind, before = np.concatenate([[False], tied]), np.concatenate([tied, [False]])
        (places,) = (behind | before).nonzero()
        run = np.cumsum(~behind)[places]
        order[places] = order[places][np.lexsort((order[places], run))]
    return order


def totals(rows: FloatArray) -> FloatArray:
    """The sum of each row, its numbers added one after the other, as by `np.bincount`: zeros at its end change no bit.

    Args:
        rows: shape `(rows, width)`, or `(width,)` for one; at least one number each.

    Returns:
        Shape `(rows,)`, or `()`.
    """
    found: FloatArray = rows.cumsum(axis=-1)[..., -1]
    return found


TWO_BYTES = np.iinfo(np.uint16).max


def by_number(numbers: IntArray, count: int) -> IntArray:
    """The stable order of whole numbers from 0 to `count - 1`, shape `(numbers,)`."""
    few = count <= TWO_BYTES  # these numbers are sorted many times as fast
    return numbers.astype(np.uint16).argsort(kind="stable") if few else numbers.argsort(kind="stable")


def distinct(numbers: IntArray) -> IntArray:
    """The numbers that are there, rising, each once; `np.unique` loads a part of NumPy for that, which takes longer."""
    rising = np.sort(numbers)
    first = np.ones(len(rising), dtype=bool)
    first[1:] = rising[1:] != rising[:-1]
    return rising[first]


def begins_of(numbers: IntArray) -> IntArray:
    """Where each run of equal numbers begins, shape `(runs,)`.

    Args:
        numbers: not negative, shape `(numbers,)`.
    """
    begins: IntArray = np.flatnonzero(np.concatenate([numbers[:1] >= 0, numbers[1:] != numbers[:-1]]))
    return begins


def turns_of(groups: IntArray, counted: NDArray[np.bool_] | None = None) -> IntArray:
    """How many of its group stand before each, shape `(groups,)`.

    Args:
        groups: not negative, shape `(groups,)`.
        counted: which of them count, likewise; by default all.
    """
    order = groups.argsort(kind="stable")
    begins = begins_of(groups[order])
    before = np.arange(len(groups))
    if counted is not None:
        counts = counted[order].astype(np.int64)
        before = counts.cumsum() - counts
    turns = np.empty(len(groups), dtype=np.int64)
    turns[order] = before - np.repeat(before[begins], np.diff(np.append(begins, len(groups))))
    return turns


def places_of(firsts: IntArray, counts: IntArray) -> IntArray:
    """The numbers of some ranges behind each other: `counts[i]` of them from `firsts[i]` on."""
    ends = np.cumsum(counts)
    places: IntArray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - (ends - counts), counts)
    return places


def joined(array: AnyArray, more: AnyArray) -> AnyArray:
    """An array of this module and another of its type, each with one axis, behind each other, as `ints` gives them."""
    found: Any = np.frombuffer(array.tobytes() + more.tobytes(), array.dtype)
    both: AnyArray = found.view()
    return both


def _kept(values: Any, dtype: type) -> NDArray[Any]:
    # Over `bytes`, because an array that owns its memory, and a view of it, can be made writeable again by anybody.
    # Always a new array, because the shape of one that is shared can be set by anybody; and always a view, whose `base`
    # is an array that is used for nothing else.
    array: NDArray[Any] = np.asarray(values, dtype=dtype)
    base: Any = array.base
    memory: Any = base.base if type(base) is np.ndarray else None  # a subclass may say what it likes
    if type(memory) is bytes and len(memory) == array.nbytes and array.flags.c_contiguous:
        return array.view()
    return np.frombuffer(array.tobytes(), dtype).reshape(array.shape or 1)
