"""Copies from the host to a device and back, by memory that the device reads and writes by itself."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """An array of the host's as a tensor on a device, without waiting for the copy.

    Args:
        numbers: of any shape and type that tensors have; on a CPU the tensor shares their memory.
        device: where to.
    """
    here = torch.from_numpy(numbers)
    on_cuda = device.type == "cuda"
    return (here.pin_memory() if on_cuda else here).to(device, non_blocking=on_cuda)


def sent_together(arrays: Sequence[NDArray[Any] | Sequence[NDArray[Any]]], device: torch.device) -> list[Tensor]:
    """Arrays of one type as tensors on a device, in one copy that is not waited for.

    Args:
        arrays: of any shape; arrays of one shape in a list become one tensor.
        device: where to.
    """
    shapes = [one.shape if isinstance(one, np.ndarray) else (len(one), *one[0].shape) for one in arrays]
    pieces = [piece for one in arrays for piece in ([one] if isinstance(one, np.ndarray) else one)]
    on_cuda = device.type == "cuda"
    kind = torch.from_numpy(np.empty(0, dtype=pieces[0].dtype)).dtype
    here = torch.empty(sum(piece.size for piece in pieces), dtype=kind, pin_memory=on_cuda)
    np.concatenate([piece.ravel() for piece in pieces], out=here.numpy())
    there, ends = here.to(device, non_blocking=on_cuda), accumulate(map(prod, shapes))
    return [there[end - prod(shape) : end].view(shape) for end, shape in zip(ends, shapes, strict=True)]


def fetched(found: Tensor) -> Tensor:
    """A tensor's numbers on the host, as soon as they are there; on a CPU it is the tensor itself."""
    here = found.to("cpu", non_blocking=found.is_cuda)  # into pinned memory; others are waited for by PyTorch
    wait_for(found.device)
    return here


def wait_for(device: torch.device) -> None:
    """Wait for what the current stream of a GPU does; elsewhere all is done when it was called."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class Outbox:
    """Numbers that are sent to a device again and again, each time without waiting for the copy.

    The device copies when it comes to that. So before they are written anew, `wait`.

    Args:
        size: how many.
        device: where to.
        event: notes when a copy is made; None makes one where copies are not waited for.

    Attributes:
        numbers: shape `(size,)`, int32, zero at first.
        there: the tensor on the device.
    """

    def __init__(self, size: int, device: torch.device, event: Any = None) -> None:
        on_cuda = device.type == "cuda"
        self._here = torch.zeros(size, dtype=torch.int32, pin_memory=on_cuda)
        if on_cuda and event is None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        self._copied = event
        self.numbers: NDArray[np.int32] = self._here.numpy()
        self.there = torch.zeros(size, dtype=torch.int32, device=device)

    def wait(self) -> None:
        """Until the numbers may be written to again."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self) -> None:
        """Copy the numbers to the device; what is launched next reads the copy."""
        self._copy()
        if self._copied is not None:
            self._copied.record()

    def _copy(self) -> None:
        self.there.copy_(self._here, non_blocking=True)
