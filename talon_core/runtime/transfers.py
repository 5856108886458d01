"""Copies from the host to a device and back, by memory that the device reads and writes by itself."""

from typing import Any

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


def fetched(found: Tensor) -> Tensor:
    """A tensor's numbers on the host, as soon as they are there; on a CPU it is the tensor itself."""
    here = found.to("cpu", non_blocking=found.is_cuda)  # into pinned memory; others are waited for by PyTorch
    if found.is_cuda:
        torch.cuda.current_stream(found.device).synchronize()
    return here
