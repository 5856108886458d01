"""Whether a bfloat16 copy still holds the numbers of a float32 tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import chosen
from talon_kernels.same_numbers.native import same_numbers_native
from talon_kernels.same_numbers.reference import same_numbers_reference

__all__ = ["same_numbers"]


def same_numbers(narrow: Tensor, wide: Tensor, *, backend: str | None = None) -> bool:
    """Whether every number of `wide` has the bits of its number in `narrow`, followed by zeros.

    So zeros of different sign differ, and a NaN equals a NaN of the same bits.

    Args:
        narrow: any shape, bfloat16 on the CPU.
        wide: as narrow, float32.
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    if narrow.shape != wide.shape:
        raise ValueError(f"narrow and wide have one shape; got {tuple(narrow.shape)} and {tuple(wide.shape)}")
    for tensor, dtype in ((narrow, torch.bfloat16), (wide, torch.float32)):
        if tensor.dtype != dtype or tensor.device.type != "cpu":
            raise ValueError(
                f"same_numbers takes bfloat16 and float32 on the CPU, got {tensor.dtype} on {tensor.device} for {dtype}"
            )
    library = chosen("same_numbers", backend)
    if library is None:
        return same_numbers_reference(narrow, wide)
    return same_numbers_native(library, narrow.contiguous(), wide.contiguous())
