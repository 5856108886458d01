"""Where the keys and values of all layers lie, told to the device once."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor

SLAB = 32
"""Most words of a row that one program moves: 32 of 8 bytes are 128 numbers in bfloat16."""


class BufferTable:
    """A set of buffers, for `commit_path`: the keys and values of every layer.

    The table keeps the buffers alive. It stays right for as long as their storage stays where it is: writing into them
    is fine, `resize_` or `set_` is not.

    Attributes:
        buffers: what it was made of.
        batch: sequences in each of them, or pages.
        word: bytes that are moved at a time, 8, 4, 2 or 1: the most that the place of every row is a multiple of.
        slabs: each head of each buffer, cut into slabs of at most `SLAB` words of every row: address, strides of batch
            and capacity in words, words of a row; shape `(slabs, 4)`, int64, on the buffers' device.
    """

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        """Look at buffers; copies to the device, so it cannot be part of a captured CUDA graph.

        Args:
            buffers: each `(batch, heads, capacity, dim)` with a last stride of 1. Heads, capacity, dim and the other
                strides may differ from buffer to buffer; batch, dtype and device may not. Any dtype: bytes are moved
                as they are.

        Raises:
            ValueError: if shapes, strides, types or devices do not fit, or a buffer is given twice.
        """
        self.buffers = tuple(buffers)
        _check(self.buffers)
        self.batch = self.buffers[0].shape[0]
        size = self.buffers[0].element_size()
        self.word = gcd(8, *(buffer.data_ptr() for buffer in self.buffers))
        for buffer in self.buffers:
            self.word = gcd(self.word, *(size * length for length in (*_strides(buffer), buffer.shape[3])))

        slabs = []
        for buffer in self.buffers:
            per_sequence, per_head, per_row = (size * stride // self.word for stride in _strides(buffer))
            width = size * buffer.shape[3] // self.word
            for head in range(buffer.shape[1]):
                for left in range(0, width, SLAB):
                    address = buffer.data_ptr() + self.word * (head * per_head + left)
                    slabs.append((address, per_sequence, per_row, min(SLAB, width - left)))
        self.slabs = torch.tensor(slabs, dtype=torch.int64).reshape(-1, 4).to(self.buffers[0].device)

    @property
    def rows(self) -> int:
        """Rows of each page, if the buffers are of pages.

        Raises:
            ValueError: if they differ in that.
        """
        found = {buffer.shape[2] for buffer in self.buffers}
        if len(found) > 1:
            raise ValueError(f"pages have {sorted(found)} rows; they must have the same number in all buffers")
        return found.pop()


def _strides(buffer: Tensor) -> list[int]:
    """Strides of batch, heads and capacity; 0 where there is no step to take, since such a stride can be anything."""
    return [stride if size > 1 else 0 for size, stride in zip(buffer.shape[:3], buffer.stride()[:3], strict=True)]


def _check(buffers: tuple[Tensor, ...]) -> None:
    if not buffers:
        raise ValueError("there are no buffers; commit_path takes the keys and values of every layer")
    first = buffers[0]
    starts: dict[int, int] = {}
    for number, buffer in enumerate(buffers):
        if buffer.dim() != 4 or buffer.shape[0] != first.shape[0]:
            raise ValueError(
                "buffers are (batch, heads, capacity, dim) with the same batch; "
                f"buffer {number} has shape {tuple(buffer.shape)}, the first {tuple(first.shape)}"
            )
        if buffer.dtype != first.dtype or buffer.device != first.device:
            raise ValueError(
                f"buffer {number} is {buffer.dtype} on {buffer.device}, the first {first.dtype} on {first.device}; "
                "they must be the same"
            )
        if buffer.shape[3] > 1 and buffer.stride(3) != 1:
            raise ValueError(f"buffer {number} has the last stride {buffer.stride(3)}; it must be 1")
        if any(size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
            raise ValueError(
                f"buffer {number} of shape {tuple(buffer.shape)} has strides {buffer.stride()}; none may be 0, as "
                "after expand(), or rows that share their memory are moved twice"
            )
        twin = starts.setdefault(buffer.data_ptr(), number) if buffer.numel() else number
        if twin != number:
            raise ValueError(
                f"buffer {number} starts where buffer {twin} does; each must be given once, or its rows are moved twice"
            )
