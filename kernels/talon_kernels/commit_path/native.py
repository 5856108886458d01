"""Moving accepted rows in C, of one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from talon_core.tree import IntArray
from talon_kernels.native import Library


class NativeMover:
    """Moves rows in some buffers, in place.

    Args:
        library: moves them.
        buffers: keys and values of all layers, each of shape `(slots, heads, capacity, size)`, float32 on the CPU, with
            the numbers of a row side by side. They are held.
    """

    def __init__(self, library: Library, buffers: Sequence[Tensor]) -> None:
        self._library = library
        self._buffers = [*buffers]
        self._addresses = np.array([buffer.data_ptr() for buffer in buffers], dtype=np.uint64)
        self._shapes = np.array(
            [[*buffer.stride()[:3], buffer.shape[1], buffer.shape[3]] for buffer in buffers], dtype=np.int64
        )

    def __call__(self, slot: int, start: int, path: IntArray) -> None:
        """Row `start + i` of a slot becomes what was in row `start + path[i]`, for all heads of all buffers.

        Args:
            slot: which.
            start: its first row behind the prefix.
            path: ascending nodes, each with a row in the buffers, shape `(nodes,)`, int64.
        """
        own = np.ascontiguousarray(path, dtype=np.int64)
        buffers, shapes = self._addresses.ctypes.data, self._shapes.ctypes.data
        self._library.move_rows(buffers, shapes, len(self._shapes), slot, start, own.ctypes.data, len(own))
