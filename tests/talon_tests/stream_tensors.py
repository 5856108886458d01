"""Tensors in the memory of a `StreamDevice`: computed on the CPU, while the device is told what its streams would do.

Memory belongs to the stream on which it was allocated. When nobody has it any more, it is the next that is allocated on
that stream, whatever another stream still does with it, unless that was told by `record_stream`: as PyTorch does it.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core.testing.operands import leaves
from talon_tests.streams import Stream, StreamDevice


class Block:
    """Some memory.

    Attributes:
        device: whose.
        name: by which its streams use it.
        used_on: further streams that use it, as it was told.
    """

    def __init__(self, device: StreamDevice) -> None:
        self.device = device
        self.used_on: list[Stream] = []
        self._owner = device.current
        free = self._owner.free
        self.name = free.pop() if free else f"memory {next(device.numbers)}"

    def __del__(self) -> None:
        if all(stream is self._owner for stream in self.used_on):  # else it waits for the others
            self._owner.free.append(self.name)


class OnStream(Tensor):
    """A tensor on a device.

    Attributes:
        block: its memory, which views share.
    """

    block: Block
    is_cuda = True
    device = torch.device("cuda:0")

    @classmethod
    def of(cls, device: StreamDevice, numbers: Tensor) -> "OnStream":
        """Numbers as a tensor on the device, written there by the current stream."""
        made = numbers.clone().as_subclass(cls)
        made.block = Block(device)
        device.launch("fill", writes=(made.block.name,))
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in leaves((args, kwargs or {})) if isinstance(one, OnStream)]
        out = super().__torch_function__(func, types, args, kwargs)
        reads, name = tuple(one.block.name for one in given), func.__name__
        if name == "__setitem__":
            args[0].block.device.launch(name, reads, writes=(args[0].block.name,))
        elif isinstance(out, OnStream) and not hasattr(out, "block"):
            same = [one for one in given if _place(one) == _place(out)]
            out.block = same[0].block if same else Block(given[0].block.device)
            if not same and name != "new_empty":
                out.block.device.launch(name, reads, writes=(out.block.name,))
        return out

    def record_stream(self, stream: Any) -> None:
        self.block.used_on.append(stream)

    def to(self, *where: Any, non_blocking: bool = False) -> Any:
        """A copy on the host."""
        assert where == ("cpu",)
        here = torch.empty(self.shape, dtype=self.dtype).copy_(_plain(self)).as_subclass(Here)
        here.block = Block(self.block.device)
        _copied("fetch", self.block, here.block, non_blocking)
        return here


class Here(Tensor):
    """A tensor on the host, in memory that the device reads and writes by itself."""

    block: Block

    def to(self, *where: Any, non_blocking: bool = False) -> Any:
        """A copy on the device."""
        (device,) = where
        assert device.type == "cuda"
        there = _plain(self).clone().as_subclass(OnStream)
        there.block = Block(self.block.device)
        _copied("send", self.block, there.block, non_blocking)
        return there

    def numpy(self, **_: Any) -> NDArray[Any]:
        self.block.device.host_touch(self.block.name, write=False)
        return np.asarray(_plain(self).numpy())


def pin(patch: pytest.MonkeyPatch, device: StreamDevice) -> None:
    """Let pinned memory be such that can be copied to the device."""
    empty = torch.empty

    def pinned(tensor: Tensor) -> Here:
        made = tensor.clone().as_subclass(Here)
        made.block = Block(device)
        return made

    def made(*sizes: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return pinned(empty(*sizes, **options)) if pin_memory else empty(*sizes, **options)

    patch.setattr(torch.Tensor, "pin_memory", pinned)
    patch.setattr(torch, "empty", made)


def _copied(name: str, source: Block, target: Block, non_blocking: bool) -> None:
    device = source.device
    device.launch(name, reads=(source.name,), writes=(target.name,))
    if not non_blocking:
        device.waiting_copies += 1
        device.current.synchronize()


def _plain(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Tensor)


def _place(tensor: Tensor) -> int:
    return _plain(tensor).untyped_storage().data_ptr()
