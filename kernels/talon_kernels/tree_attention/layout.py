"""What the backends derive from a layout, once for all layers of a forward pass."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from operator import add
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import attrs
import numpy as np
import numpy.typing as npt

from talon_core.attention import TreeLayout

T = TypeVar("T")


class PerLayout(Generic[T]):
    """Computes something for a layout when it is first asked for, and keeps it as long as the layout lives."""

    def __init__(self, make: Callable[[TreeLayout], T]) -> None:
        self._make = make
        self._kept: WeakKeyDictionary[TreeLayout, T] = WeakKeyDictionary()

    def __call__(self, layout: TreeLayout) -> T:
        kept = self._kept.get(layout)
        if kept is None:
            kept = self._kept[layout] = self._make(layout)
        return kept


def visible(layout: TreeLayout, sequence: int, window: int | None) -> npt.NDArray[np.bool_]:
    """Which rows of the key buffer each query of one sequence attends to.

    Args:
        layout: the layout.
        sequence: index of the sequence.
        window: a key is visible only if its position is less than `window` behind the query's.

    Returns:
        Shape `(queries, prefix + nodes)`.
    """
    parents, prefix = layout.parents[sequence], int(layout.prefix_lengths[sequence])
    nodes = len(parents)
    seen = np.zeros((nodes, prefix + nodes), dtype=np.bool_)
    position = np.arange(prefix + nodes)
    for node, parent in enumerate(parents.tolist()):
        if parent < 0:
            seen[node, :prefix] = True
            position[prefix + node] = prefix
        else:
            seen[node] = seen[parent]
            position[prefix + node] = position[prefix + parent] + 1
        seen[node, prefix + node] = True
    if window is not None:
        seen &= position[prefix:, None] - position[None, :] < window
    return seen[int(layout.first_queries[sequence]) :]


@attrs.frozen(eq=False)
class NativeLayout:
    """A layout as the C kernel takes it.

    Attributes:
        prefix: address of `batch` int32: rows of the prefix.
        counts: address of `batch` int32: nodes of the tree.
        first: address of `batch` int32: the first node that is a query.
        parents: address of `batch` addresses, each of `counts[b]` int32.
        used: rows of the key buffer that may be read, the largest of any sequence.
    """

    prefix: int
    counts: int
    first: int
    parents: int
    used: int
    _owners: tuple[object, ...]


def _native(layout: TreeLayout) -> NativeLayout:
    prefixes, nodes = layout.prefix_lengths.tolist(), [*map(len, layout.parents)]
    small = np.array([prefixes, nodes, layout.first_queries], dtype=np.int32)
    parents = [tree.astype(np.int32) for tree in layout.parents]
    for sequence, tree in enumerate(parents):
        if len(tree) and (tree.item(0) != -1 or _misplaced(tree)):
            raise ValueError(f"parents of tree {sequence} do not stand before their children: {tree.tolist()}")
    addresses = (ctypes.c_void_p * len(parents))(*[tree.ctypes.data for tree in parents])
    at, step = small.ctypes.data, small.strides[0]
    used = max(map(add, prefixes, nodes), default=0)
    return NativeLayout(at, at + step, at + 2 * step, ctypes.addressof(addresses), used, (small, parents, addresses))


def _misplaced(parents: npt.NDArray[np.int32]) -> bool:
    return len(parents) > 1 and bool(((parents >= np.arange(len(parents), dtype=np.int32)) | (parents < -1)).any())


native_layout = PerLayout(_native)
