"""What the backends derive from a layout, once for all layers of a forward pass."""

from __future__ import annotations

from collections.abc import Callable
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
    """A layout as the C kernels take it.

    Attributes:
        numbers: of all sequences their prefixes, then how many nodes their trees have, then the first ones that are
            queries; then the parents of all nodes, tree by tree; int32.
        used: rows of the key buffer that may be read, the largest of any sequence.
    """

    numbers: npt.NDArray[np.int32]
    used: int

    @classmethod
    def of(cls, layout: TreeLayout) -> NativeLayout:
        parts = [layout.prefix_lengths, layout.nodes, layout.first_queries, *layout.parents]
        used = int((layout.prefix_lengths + layout.nodes).max(initial=0))
        return cls(np.concatenate(parts, dtype=np.int32, casting="same_kind"), used)


native_layout = PerLayout(NativeLayout.of)
