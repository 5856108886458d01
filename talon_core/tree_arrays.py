"""The arrays that trees are made of: small, on the host, in memory that nobody can write to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BitArray = NDArray[np.uint32]


def ints(values: Any) -> IntArray:
    """A new read-only array, int64, at least one axis; it shares the memory of one that was made here."""
    return _kept(values, np.int64)


def floats(values: Any) -> FloatArray:
    """A new read-only array, float64, at least one axis; it shares the memory of one that was made here."""
    return _kept(values, np.float64)


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
