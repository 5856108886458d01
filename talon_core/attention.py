"""The interfaces between a target adapter and compute kernels: tree attention, and faster layers for a device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import numpy as np

from talon_core.tree import BitArray, IntArray, TokenTree, ancestor_bits, node_depths

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, device, dtype, nn

    from talon_core.runtime.recording import PassRecorder


@attrs.frozen(eq=False)
class TreeLayout:
    """Who may attend to whom in one forward pass over a batch of trees; the same for all layers.

    Sequence `b` has its committed prefix in rows `0` to `prefix_lengths[b] - 1` of its key and value buffers, at
    positions of the same numbers, and node `i` of the tree in row `prefix_lengths[b] + i`, at position
    `prefix_lengths[b] + depth(i)`. A node attends to the prefix, to its ancestors and to itself. The queries of a
    pass are the last nodes of each tree, from `first_queries[b]` on: all of them when a tree is verified, one
    layer of them when it is drafted. They stand one after another, sequence by sequence, without padding.

    Attributes:
        prefix_lengths: committed tokens in the cache, shape `(batch,)`, int64.
        parents: for each tree the parent of each node, shape `(nodes,)`, int64; -1 for a root. Parents stand
            before their children. A sequence that has no part in the pass has no nodes.
        first_queries: index of the first node that is a query, shape `(batch,)`, int64; 0 for all.
    """

    prefix_lengths: IntArray
    parents: tuple[IntArray, ...]
    first_queries: IntArray
    _packed: "dict[device, PackedLayout]" = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, trees: Sequence[TokenTree], prefix_lengths: Sequence[int]) -> "TreeLayout":
        """The layout in which every node of `trees` is a query."""
        return cls(
            np.array(prefix_lengths, dtype=np.int64),
            tuple(tree.parents for tree in trees),
            np.zeros(len(trees), dtype=np.int64),
        )

    @classmethod
    def chain(cls, start: int, count: int, first: int = 0) -> "TreeLayout":
        """The layout of one sequence whose next `count` tokens, from position `start` on, follow one another.

        The queries are those from the `first` on.
        """
        return cls(np.array([start]), (np.arange(-1, count - 1),), np.array([first], dtype=np.int64))

    def of_some(self, sequences: Sequence[int]) -> "TreeLayout":
        """The layout of some of the sequences, ascending, among which are all that have queries."""
        own = [*sequences]
        if len(own) == len(self.parents):
            return self
        return TreeLayout(self.prefix_lengths[own], tuple(self.parents[b] for b in own), self.first_queries[own])

    @cached_property
    def nodes(self) -> IntArray:
        """Nodes of each tree, shape `(batch,)`, int64."""
        return np.array([len(parents) for parents in self.parents], dtype=np.int64)

    @cached_property
    def starts(self) -> IntArray:
        """Where the queries of each sequence start, and at last their number, shape `(batch + 1,)`, int64."""
        counts = [len(own) - first for own, first in zip(self.parents, self.first_queries.tolist(), strict=True)]
        return np.array([0, *accumulate(counts)], dtype=np.int64)

    @property
    def queries(self) -> int:
        """Queries of all sequences together."""
        return int(self.starts[-1])

    @cached_property
    def depths(self) -> tuple[IntArray, ...]:
        """For each tree the depth of each node, shape `(nodes,)`, int64; 0 for roots."""
        return tuple(node_depths(parents) for parents in self.parents)

    @cached_property
    def bits(self) -> tuple[BitArray, ...]:
        """For each tree the packed ancestor mask, as in `TokenTree.ancestor_bits`, `(nodes, ceil(nodes / 32))`."""
        return tuple(ancestor_bits(parents) for parents in self.parents)

    @cached_property
    def shape(self) -> "PackedShape":
        """The smallest shape in which it can be packed."""
        most = int(np.diff(self.starts).max(initial=0))
        return PackedShape(len(self.parents), int(self.nodes.max(initial=0)), self.queries, most)

    def packed(self, device: "device") -> "PackedLayout":
        """It in device memory; one copy to the device, the first time."""
        if device not in self._packed:
            import torch

            numbers = np.zeros(self.shape.size, dtype=np.int32)
            self.shape.write(self, numbers)
            self._packed[device] = self.shape.views(torch.from_numpy(numbers).to(device))
        return self._packed[device]


@attrs.frozen
class PackedShape:
    """How large the arrays of a `PackedLayout` are. A layout fits any shape that is not smaller than its own.

    Attributes:
        batch: sequences.
        nodes: nodes of the largest tree.
        queries: queries of all sequences together.
        most: queries of the sequence that has most, by which kernels cut their work.
    """

    batch: int
    nodes: int
    queries: int
    most: int

    @property
    def words(self) -> int:
        """32-bit words of one query's ancestor bits."""
        return (self.nodes + 31) // 32

    @property
    def size(self) -> int:
        """Numbers of a packed layout altogether."""
        return 4 * self.batch + self.batch * self.nodes + self.queries * self.words

    def write(self, layout: TreeLayout, numbers: "NDArray[np.int32]") -> None:
        """Pack a layout into host memory of shape `(size,)`, which is zero or holds an earlier layout.

        Raises:
            ValueError: if the layout does not fit.
        """
        own = layout.shape
        if any(one > room for one, room in zip(attrs.astuple(own), attrs.astuple(self), strict=True)):
            raise ValueError(f"a layout of {own} does not fit {self}")
        sequences, depths, bits = self._split(numbers)
        sequences[own.batch :] = 0  # sequences without nodes
        sequences[: own.batch, 0] = layout.prefix_lengths
        sequences[: own.batch, 1] = layout.nodes
        sequences[: own.batch, 2] = layout.first_queries
        sequences[: own.batch, 3] = layout.starts[:-1]
        for row, (own_depths, own_bits) in enumerate(zip(layout.depths, layout.bits, strict=True)):
            depths[row, : len(own_depths)] = own_depths
            first, start, end = int(layout.first_queries[row]), int(layout.starts[row]), int(layout.starts[row + 1])
            bits[start:end, : own_bits.shape[1]] = own_bits[first:].view(np.int32)
            bits[start:end, own_bits.shape[1] :] = 0

    def views(self, numbers: "Tensor") -> "PackedLayout":
        """The layout that stands in `numbers`, device memory of shape `(size,)`, int32."""
        return PackedLayout(*self._split(numbers), self.most)

    def _split(self, numbers: Any) -> tuple[Any, Any, Any]:
        first, second = 4 * self.batch, 4 * self.batch + self.batch * self.nodes
        return (
            numbers[:first].reshape(self.batch, 4),
            numbers[first:second].reshape(self.batch, self.nodes),
            numbers[second : self.size].reshape(self.queries, self.words),
        )


@attrs.frozen(eq=False)
class PackedLayout:
    """A `TreeLayout` in device memory: all that a kernel needs to know of it, in arrays of sizes that may stay fixed.

    What a kernel reads of the arrays is decided by the numbers in `sequences` alone, so the same memory can be written
    anew for each pass while a captured CUDA graph goes on reading it.

    Attributes:
        sequences: shape `(batch, 4)`, int32: for each its committed tokens, the nodes of its tree, the first of them
            that is a query, and the place of that one among the queries of all sequences. The first node that is no
            query any more is the last; a sequence may have no nodes.
        depths: depth of each node, shape `(batch, nodes)`, int32; what is behind a tree's nodes means nothing.
        bits: the ancestor bits of each query, shape `(queries, words)`, int32: bit `j % 32` of word `j // 32` is set
            if the query may attend to node `j` of its tree. What is behind the queries means nothing.
        most: no sequence has more queries, in any pass that is written to this memory.
    """

    sequences: "Tensor"
    depths: "Tensor"
    bits: "Tensor"
    most: int


class AttentionBackend(ABC):
    """Computes tree attention. One object serves all layers of a model."""

    name: ClassVar[str]
    """What the backend is called in the registry."""

    reads_prompts: ClassVar[bool] = False
    """Whether it computes prompts on a CPU, too, each as a chain of nodes. Set it where that is faster than PyTorch's
    causal attention."""

    @classmethod
    def priority(cls, device: "device") -> int:
        """How early it is tried on a device where none is asked for: the highest first, and by name among equals.

        TALON's own have 10 (plain PyTorch) to 30 (the fastest kernels). What cannot run there is left out by
        `unavailable`, whatever its priority.
        """
        return 0

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
        """Attention of tree nodes over their sequence's prefix and their own ancestors.

        Args:
            query: shape `(heads, queries, head_dim)`: those of all sequences, as the layout has them.
            key: shape `(batch, kv_heads, capacity, head_dim)`; `heads` is a multiple of `kv_heads`.
            value: shape `(batch, kv_heads, capacity, value_dim)`.
            layout: who may attend to whom.
            scale: factor of the scores.
            softcap: scores become `softcap * tanh(score / softcap)`.
            window: a key is visible only if its position is less than `window` behind the query's.
            sinks: one more score for each head, shape `(heads,)`, in the denominator only.

        Returns:
            Shape `(heads, queries, value_dim)`.
        """

    def recorder(self) -> "PassRecorder | None":
        """Who writes down passes on a host, so that they are repeated without Python; None if nobody does."""
        return None


class TooLargeError(ValueError):
    """A kernel needs more of a device than it has, such as shared memory, for trees as large; it may do small ones."""


class DeviceBackend(AttentionBackend):
    """An attention backend whose work needs nothing from the host: a captured CUDA graph can hold and repeat it.

    Beside attention it does what else a round does with trees, so that verifying, walking and committing can follow
    one another on the device.
    """

    def attend(self, query: "Tensor", key: "Tensor", value: "Tensor", layout: TreeLayout, **options: Any) -> "Tensor":
        return self.attend_packed(query, key, value, layout.packed(query.device), **options)

    @abstractmethod
    def attend_packed(
        self,
        query: "Tensor",
        key: "Tensor",
        value: "Tensor",
        layout: PackedLayout,
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: "Tensor | None" = None,
        table: "Tensor | None" = None,
    ) -> "Tensor":
        """As `attend`. Queries behind the layout's are padding, and their outputs are zero.

        Args:
            query: as there, and so are the others that nothing is said of.
            key: as there, or with a table pages of rows, shape `(pages, kv_heads, rows, head_dim)`.
            value: likewise, with its own head size.
            layout: who may attend to whom, in device memory.
            scale: as there.
            softcap: as there.
            window: as there.
            sinks: as there.
            table: the pages of each sequence, shape `(batch, most)`, int32, contiguous, on the device: row `r` of
                sequence `b` is row `r % rows` of page `table[b, r // rows]`, and `rows` is a power of two. What is
                behind the pages that a sequence needs for its prefix and its tree is not read. As the layout, it may be
                written anew for each pass. None if each sequence has its rows in one piece, as for `attend`.

        Raises:
            TooLargeError: if the device cannot do it for trees as large. That ends the texts whose pass it is; where
                passes are recorded before they are wanted, these are left out.
        """

    @abstractmethod
    def greedy_walk(
        self, best: "Tensor", tokens: "Tensor", parents: "Tensor", sequences: "Tensor", ends: "Tensor", longest: int
    ) -> "Tensor":
        """Walk along the target's most likely tokens for as long as each tree holds them.

        Args:
            best: the most likely token after each node, shape `(queries,)`, int64.
            tokens: each node's own, shape `(queries,)`, int32.
            parents: each node's parent in its own tree, shape `(queries,)`, int32; -1 for roots.
            sequences: as in `PackedLayout`; every node is a query.
            ends: tokens that end the text, shape `(ends,)`, int32: a walk goes no further than to one of them.
            longest: room for so many nodes of a path.

        Returns:
            For each sequence the length of its path, the token after it, and the nodes of the path, root first; shape
            `(batch, 2 + longest)`, int32.
        """

    @abstractmethod
    def mover(self, buffers: "Sequence[Tensor]") -> "Callable[[Tensor, Tensor, Tensor], None]":
        """What moves accepted rows to the end of the prefix, in place, in all these buffers.

        Args:
            buffers: keys and values of all layers in pages, each of shape `(pages, kv_heads, rows, head_dim)`.

        Returns:
            `move(sequences, walks, table)`, with `sequences` as in `PackedLayout`, `walks` as `greedy_walk` returns
            them and `table` as for `attend_packed`: node `path[i]` of a tree goes to row `prefix + i`.
        """


class Accelerator(ABC):
    """Makes a model's own layers faster on some device, without changing what they compute."""

    name: ClassVar[str]
    """What the accelerator is called in the registry."""

    automatic: ClassVar[bool] = True
    """Whether it is taken where it can run and none is asked for; False for one that must be asked for by name."""

    @classmethod
    def priority(cls, device: "device") -> int:
        """How early an automatic one is tried on a device: the highest first, and by name among equals."""
        return 0

    @abstractmethod
    def unavailable(self, device: "device", dtype: "dtype") -> str | None:
        """Why it cannot run on such a model, as the end of a sentence, or None if it can."""

    def measured(self) -> Mapping[str, str]:
        """How fast it is on this machine, which takes a moment to find out: what, and a figure with its unit."""
        return {}

    @abstractmethod
    def prepare(self, model: "nn.Module") -> AbstractContextManager[object]:
        """A context in which `model` runs faster; outside of it the model is as it was. It can be entered again."""
