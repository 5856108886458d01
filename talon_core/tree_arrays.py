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
