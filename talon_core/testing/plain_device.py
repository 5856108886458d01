"""A device backend by the definitions, in plain PyTorch, for tests on a CPU."""

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core.attention import DeviceBackend, PackedLayout
from talon_core.tree import IntArray
from talon_core.tree_arrays import places_of


class PlainDevice(DeviceBackend):
    """Computes what its docstrings say: scores of all rows, those that a query may not see masked, softmax, sum."""

    name = "plain-device"

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def attend_packed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: PackedLayout,
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: Tensor | None = None,
        table: Tensor | None = None,
    ) -> Tensor:
        packed = _Queries.of(layout)
        seen = torch.from_numpy(packed.visible(window))[:, None]  # (batch, 1, queries, rows)
        batch, _, _, rows = seen.shape
        if table is not None:
            table = table[:batch, : -(-rows // key.shape[2])]  # of the pages that are read
            key, value = _in_one_piece(key, table), _in_one_piece(value, table)
        key, value = key[:batch, :, :rows], value[:batch, :, :rows]
        value = value.masked_fill(~seen.any(2)[..., None], 0.0)  # what nobody sees may be NaN
        own = query.new_zeros((*packed.padded, len(query), query.shape[2]))  # (batch, queries, heads, size)
        own[packed.sequence, packed.at] = query[:, packed.place].transpose(0, 1)
        heads, shared, queries = len(query), key.shape[1], packed.padded[1]
        together = batch, shared, heads // shared * queries  # the queries of all heads that share keys
        apart = batch, heads, queries
        score = own.transpose(1, 2).reshape(*together, query.shape[2]) @ key.transpose(2, 3) * scale
        score = score.reshape(*apart, rows)
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        score = score.masked_fill(~seen, -torch.inf)
        if sinks is not None:
            score = torch.cat([score, sinks[:, None, None].expand(*score.shape[:3], 1)], dim=-1)
        prob = torch.softmax(score, dim=-1)[..., :rows]
        summed = prob.reshape(*together, rows) @ value
        summed = summed.reshape(*apart, value.shape[3])
        out = query.new_zeros((*query.shape[:2], value.shape[3]))
        out[:, packed.place] = summed[packed.sequence, :, packed.at].transpose(0, 1)
        return out

    def greedy_walk(
        self, best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
    ) -> Tensor:
        walks = torch.full((len(sequences), 2 + longest), -1, dtype=torch.int32)
        for walk, (_, nodes, _, start) in zip(walks, sequences.tolist(), strict=True):
            own = slice(start, start + nodes)
            path = [0] if nodes else []
            token = -1
            while path:
                token = int(best[own][path[-1]])
                children = torch.nonzero((parents[own] == path[-1]) & (tokens[own] == token))
                if token in ends.tolist() or not len(children) or len(path) == longest:
                    break
                path.append(int(children[0]))
            walk[: 2 + len(path)] = torch.tensor([len(path), token, *path])
        return walks

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
        def move(sequences: Tensor, walks: Tensor, table: Tensor) -> None:
            sequence, at = _each_of(walks[:, 0].long().numpy())
            prefix = sequences[:, 0].long()[sequence]
            source, target = prefix + walks[sequence, 2 + at], prefix + torch.from_numpy(at)
            for buffer in buffers:
                rows = buffer.shape[2]
                kept = buffer[table[sequence, source // rows].long(), :, source % rows]
                buffer[table[sequence, target // rows].long(), :, target % rows] = kept

        return move


def _in_one_piece(buffer: Tensor, table: Tensor) -> Tensor:
    """Rows of pages, `(pages, heads, rows, size)`, by sequence: `(batch, heads, capacity, size)`."""
    return buffer[table.long()].transpose(1, 2).flatten(2, 3)


def _each_of(counts: IntArray) -> tuple[IntArray, IntArray]:
    """For so many things of each sequence, one after the other: whose each is, and which of those it is."""
    return np.repeat(np.arange(len(counts)), counts), places_of(np.zeros_like(counts), counts)


@attrs.frozen(eq=False)
class _Queries:
    """The queries of a packed layout, of all sequences one after the other.

    Attributes:
        layout: in which they are.
        padded: how many sequences there are, and queries of the one that has most.
        sequence: of each query, shape `(queries,)`.
        at: its number among those of its sequence, likewise.
        place: where it is among the queries of all, likewise.
    """

    layout: PackedLayout
    padded: tuple[int, int]
    sequence: IntArray
    at: IntArray
    place: IntArray

    @classmethod
    def of(cls, layout: PackedLayout) -> "_Queries":
        _, nodes, first, start = layout.sequences.numpy().astype(np.int64).T
        counts = nodes - first
        sequence, at = _each_of(counts)
        return cls(layout, (len(counts), int(counts.max(initial=0))), sequence, at, start[sequence] + at)

    def visible(self, window: int | None) -> NDArray[np.bool_]:
        """Which rows of the buffers each query sees, from the packed numbers alone, shape `(batch, queries, rows)`.

        Rows behind a tree's last node are seen by none; a query that is only there to fill up sees the first row.
        """
        prefix, nodes, first, _ = self.layout.sequences.numpy().astype(np.int64).T
        depths, most = self.layout.depths.numpy(), int((prefix + nodes).max(initial=1))
        node = np.arange(most) - prefix[:, None]  # which node of its tree a row has, below 0 in the prefix
        inside = (node >= 0) & (node < nodes[:, None])
        node = np.where(inside, node, 0)
        words = np.ascontiguousarray(self.layout.bits.numpy()[self.place])
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").astype(bool)
        own = np.take_along_axis(bits, node[self.sequence], axis=1) & inside[self.sequence]
        own |= (np.arange(most) < prefix[:, None])[self.sequence]
        if window is not None:
            row_at = np.where(inside, prefix[:, None] + np.take_along_axis(depths, node, axis=1), np.arange(most))
            query_at = prefix[self.sequence] + depths[self.sequence, first[self.sequence] + self.at]
            own &= query_at[:, None] - row_at[self.sequence] < window
        seen = np.zeros((*self.padded, most), dtype=bool)
        seen[:, :, 0] = True
        seen[self.sequence, self.at] = own
        return seen
