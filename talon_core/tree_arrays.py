"""The arrays that trees are made of: small, on the host, never written to."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BitArray = NDArray[np.uint32]


def ints(values: Any) -> IntArray:
    """A read-only copy, int64, at least one axis; the array itself where it is that already."""
    return _kept(values, np.int64)


def floats(values: Any) -> FloatArray:
    """A read-only copy, float64, at least one axis; the array itself where it is that already."""
    return _kept(values, np.float64)


def _kept(values: Any, dtype: type) -> NDArray[Any]:
    is_array = isinstance(values, np.ndarray) and values.dtype == dtype and values.ndim
    if is_array and values.flags.owndata and not values.flags.writeable:
        return values  # type: ignore[no-any-return]
    array: NDArray[Any] = np.array(values, dtype=dtype, ndmin=1)
    array.flags.writeable = False
    return array
