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


FEW = 24
"""Numbers up to which Python's own functions over a list are faster than NumPy's over an array."""


def ends_of(values: IntArray) -> tuple[int, int]:
    """The smallest and the largest of some numbers, at least one, with one axis."""
    if len(values) > FEW:
        return int(np.minimum.reduce(values)), int(np.maximum.reduce(values))
    numbers = values.tolist()
    return min(numbers), max(numbers)


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
