"""Memory that two processes share for arrays, so that what is sent between them stays small, and for one number."""

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, dtype

GRANULE = 1 << 20
"""Bytes by which it grows."""
HEAD = 64
"""Bytes before the arrays; the number stands in the first eight of them."""


@attrs.frozen
class Placed:
    """Where a tensor lies.

    Attributes:
        start: its first byte.
        shape: likewise.
        dtype: its type, as "float32".
        size: bytes of the whole memory by then.
    """

    start: int
    shape: tuple[int, ...]
    dtype: str
    size: int


class Shelf:
    """Memory without a name: it is gone when both processes are, however they end.

    Besides arrays it holds `ended`, a number that one process sets and the other looks at, without a message.

    Args:
        number: of the file that it is; None makes one.

    Attributes:
        number: likewise, for the other process to inherit.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = _nameless() if number is None else number
        self._memory: Any = None
        self._numbers: Any = None
        self._size = 0
        self._used = HEAD
        if number is None:
            os.ftruncate(self.number, GRANULE)
        self._map(os.fstat(self.number).st_size)

    @property
    def ended(self) -> int:
        """The number of the last preparing that is to end, 0 before."""
        return int(self._numbers[0])

    @ended.setter
    def ended(self, number: int) -> None:
        self._numbers[0] = number

    def clear(self) -> None:
        """What was placed has been taken."""
        self._used = HEAD

    def place(self, tensor: "Tensor") -> Placed:
        """Put a tensor there."""
        import torch

        own = tensor.detach().cpu().contiguous()
        data = own.view(torch.uint8).numpy().reshape(-1) if own.numel() else np.empty(0, dtype=np.uint8)
        start, end = self._used, self._used + len(data)
        if end > self._size:
            size = -(-end // GRANULE) * GRANULE
            os.ftruncate(self.number, size)
            self._map(size)
        if len(data):
            np.frombuffer(self._memory, dtype=np.uint8)[start:end] = data
        self._used = end
        return Placed(start, tuple(own.shape), str(own.dtype).removeprefix("torch."), self._size)

    def take(self, placed: Placed) -> "Tensor":
        """A copy of what was put there."""
        import torch

        kind: dtype = getattr(torch, placed.dtype)
        if placed.size > self._size:
            self._map(placed.size)
        found = torch.empty(placed.shape, dtype=kind)
        if found.numel():
            length = found.numel() * found.element_size()
            data = np.frombuffer(self._memory, dtype=np.uint8)[placed.start : placed.start + length]
            found.view(torch.uint8).view(-1).copy_(torch.from_numpy(data.copy()))
        return found

    def _map(self, size: int) -> None:
        self._memory = mmap.mmap(self.number, size)
        self._numbers = np.frombuffer(self._memory, dtype=np.int64, count=1)  # one aligned store, never a half of it
        self._size = size

    def close(self) -> None:
        """Give it up in this process."""
        self._memory = self._numbers = None
        os.close(self.number)


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("talon")
    with tempfile.TemporaryFile() as file:  # it has no name any more
        return os.dup(file.fileno())
