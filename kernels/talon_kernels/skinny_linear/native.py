"""The product in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import Library
from talon_kernels.recorded.tape import noting
from talon_kernels.stored import Stored, address_of, kind_of, shape_of


def skinny_linear_native(library: Library, x: Tensor, weight: Stored, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias`; x of shape `(..., in)`; all contiguous on the CPU, and float32 but for the weight."""
    tape = noting()
    if tape is not None:
        return tape.linear(x, weight, bias)
    out, inputs = shape_of(weight)
    y = x.new_empty((*x.shape[:-1], out))
    library.linear(
        x.data_ptr(),
        address_of(weight),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        y.numel() // out if out else 0,
        out,
        inputs,
        kind_of(weight),
        torch.get_num_threads(),
    )
    return y
