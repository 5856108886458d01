"""A preallocated key-value cache with a tree region behind each row's committed prefix."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from talon_core.tree import IntArray


class TreeCache:
    """Keys and values of a batch: `lengths[b]` committed rows, then the rows of the tree being drafted or verified.

    A model sees it as its `past_key_values` and calls `update` and `get_seq_length` alone; nothing of transformers'
    own caches is used. Each layer's buffers have shape `(batch, kv_heads, capacity, head_dim)` and are allocated
    when the layer first writes, so layers may differ in heads and head size. Layers are told apart by their index,
    which may have gaps.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.staged: list[int] = []
        self._capacity = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._row: int | None = None
        self._counts: Sequence[int] = ()

    def reset(self, batch: int, capacity: int) -> None:
        """Forget everything and make room for `capacity` rows a sequence, committed and staged together."""
        self.lengths = [0] * batch
        self.staged = [0] * batch
        some = next(iter(self._keys.values()), None)
        if some is None or some.shape[0] != batch or self._capacity < capacity or self._capacity > 4 * capacity:
            self._keys.clear()
            self._values.clear()
            self._capacity = capacity

    def stage(self, counts: Sequence[int], row: int | None = None) -> None:
        """Announce a forward pass that writes `counts[b]` rows behind those of sequence `b`.

        Args:
            counts: rows to be written, one count per sequence.
            row: the only sequence in the pass, if the batch of the pass is this one alone; None for all.
        """
        self._row = row
        self._counts = counts
        need = max(
            length + staged + count for length, staged, count in zip(self.lengths, self.staged, counts, strict=True)
        )
        if need > self._capacity:
            self._grow(max(need, self._capacity + self._capacity // 2))

    def staged_now(self) -> None:
        """The announced pass is over: its rows are part of the tree."""
        self.staged = [staged + count for staged, count in zip(self.staged, self._counts, strict=True)]

    def _grow(self, capacity: int) -> None:
        for buffers in (self._keys, self._values):
            for layer, old in buffers.items():
                new = old.new_empty((*old.shape[:2], capacity, old.shape[3]))
                new[:, :, : self._capacity] = old
                buffers[layer] = new
        self._capacity = capacity

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a pass's rows, as a model's attention layer asks for it.

        Args:
            keys: shape `(batch, kv_heads, rows, head_dim)`; sequences with fewer rows are padded at the end.
            values: the same shape but for its own head size.
            layer_idx: the model's own number of the layer.

        Returns:
            The whole buffers, shape `(batch, kv_heads, capacity, head_dim)`.
        """
        if layer_idx not in self._keys:
            batch = len(self.lengths)
            self._keys[layer_idx] = keys.new_empty((batch, keys.shape[1], self._capacity, keys.shape[3]))
            self._values[layer_idx] = values.new_empty((batch, values.shape[1], self._capacity, values.shape[3]))
        all_keys, all_values = self._keys[layer_idx], self._values[layer_idx]
        if len(self.lengths) == 1:
            start, count = self.lengths[0] + self.staged[0], self._counts[0]
            all_keys.narrow(2, start, count).copy_(keys)
            all_values.narrow(2, start, count).copy_(values)
            return all_keys, all_values
        rows = range(len(self.lengths)) if self._row is None else (self._row,)
        for source, row in enumerate(rows):
            start = self.lengths[row] + self.staged[row]
            count = self._counts[row]
            all_keys[row, :, start : start + count] = keys[source, :, :count]
            all_values[row, :, start : start + count] = values[source, :, :count]
        if self._row is not None:
            return all_keys[self._row : self._row + 1], all_values[self._row : self._row + 1]
        return all_keys, all_values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed rows of the longest sequence; models ask when they are not told positions."""
        return max(self.lengths, default=0)

    def commit(self, paths: Sequence[IntArray]) -> None:
        """Move the tree rows `paths[b]`, ascending, to the end of each prefix and forget the others.

        Only rows that are not where they belong already are moved.
        """
        for row, path in enumerate(paths):
            start = self.lengths[row]
            stay = int((path == np.arange(len(path))).cumprod().sum())
            if stay < len(path):
                source = torch.as_tensor(path[stay:] + start)
                target = slice(start + stay, start + len(path))
                for buffers in (self._keys, self._values):
                    for buffer in buffers.values():
                        # the right side gathers into a new tensor before anything is written
                        buffer[row, :, target] = buffer[row].index_select(1, source.to(buffer.device))
            self.lengths[row] = start + len(path)
            self.staged[row] = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffers in (self._keys, self._values) for buffer in buffers.values())
