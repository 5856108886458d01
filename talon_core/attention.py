"""The interfaces between a target adapter and compute kernels: tree attention, and faster layers for a device."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import attrs
import numpy as np

from talon_core.tree import BitArray, IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor, device, dtype, nn


@attrs.frozen(eq=False)
class TreeLayout:
    """Who may attend to whom in one forward pass over a batch of trees; the same for all layers.

    Row `b` of the key and value buffers holds the committed prefix in its rows `0` to `prefix_lengths[b] - 1`, at
    positions of the same numbers, and node `i` of the tree in row `prefix_lengths[b] + i`, at position
    `prefix_lengths[b] + depth(i)`. A node attends to the prefix, to its ancestors and to itself. The queries of a
    pass are the last nodes of each tree, from `first_queries[b]` on: all of them when a tree is verified, one
    layer of them when it is drafted.

    Attributes:
        prefix_lengths: committed tokens in the cache, shape `(batch,)`, int64.
        parents: for each tree the parent of each node, shape `(nodes,)`, int64; -1 for a root. Parents stand
            before their children.
        first_queries: index of the first node that is a query, shape `(batch,)`, int64; 0 for all.
    """

    prefix_lengths: IntArray
    parents: tuple[IntArray, ...]
    first_queries: IntArray

    @classmethod
    def of(cls, trees: Sequence[TokenTree], prefix_lengths: Sequence[int]) -> "TreeLayout":
        """The layout in which every node of `trees` is a query."""
        return cls(
            np.array(prefix_lengths, dtype=np.int64),
            tuple(tree.parents for tree in trees),
            np.zeros(len(trees), dtype=np.int64),
        )

    @classmethod
    def chain(cls, start: int, count: int) -> "TreeLayout":
        """The layout of one sequence whose next `count` tokens, from position `start` on, follow one another."""
        return cls(np.array([start]), (np.arange(-1, count - 1),), np.zeros(1, dtype=np.int64))

    @cached_property
    def trees(self) -> tuple[TokenTree, ...]:
        """The trees' shapes, their tokens all 0: depths and ancestor bits are read from them."""
        return tuple(
            TokenTree(tokens=np.zeros(len(parents)), parents=parents, path_logp=np.zeros(len(parents)))
            for parents in self.parents
        )

    @property
    def depths(self) -> tuple[IntArray, ...]:
        """For each tree the depth of each node, shape `(nodes,)`, int64."""
        return tuple(tree.depths for tree in self.trees)

    @property
    def bits(self) -> tuple[BitArray, ...]:
        """For each tree the packed ancestor mask, as in `TokenTree.ancestor_bits`."""
        return tuple(tree.ancestor_bits for tree in self.trees)


class AttentionBackend(ABC):
    """Computes tree attention. One object serves all layers of a model."""

    name: ClassVar[str]
    """What the backend is called in the registry."""

    @abstractmethod
    def unavailable(self, device: "device", dtype: "dtype") -> str | None:
        """Why it cannot run on such tensors, as the end of a sentence, or None if it can."""

    @abstractmethod
    def attend(
        self,
        query: "Tensor",
        key: "Tensor",
        value: "Tensor",
        layout: TreeLayout,
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: "Tensor | None" = None,
    ) -> "Tensor":
        """Attention of tree nodes over their row's prefix and their own ancestors.

        Args:
            query: shape `(batch, heads, queries, head_dim)`; rows with fewer queries are padded at the end.
            key: shape `(batch, kv_heads, capacity, head_dim)`; `heads` is a multiple of `kv_heads`.
            value: shape `(batch, kv_heads, capacity, value_dim)`.
            layout: who may attend to whom.
            scale: factor of the scores.
            softcap: scores become `softcap * tanh(score / softcap)`.
            window: a key is visible only if its position is less than `window` behind the query's.
            sinks: one more score for each head, shape `(heads,)`, in the denominator only.

        Returns:
            Shape `(batch, heads, queries, value_dim)`; padded queries hold anything.
        """


class Accelerator(ABC):
    """Makes a model's own layers faster on some device, without changing what they compute."""

    name: ClassVar[str]
    """What the accelerator is called in the registry."""

    @abstractmethod
    def unavailable(self, device: "device", dtype: "dtype") -> str | None:
        """Why it cannot run on such a model, as the end of a sentence, or None if it can."""

    @abstractmethod
    def prepare(self, model: "nn.Module") -> AbstractContextManager[object]:
        """A context in which `model` runs faster; outside of it the model is as it was. It can be entered again."""
