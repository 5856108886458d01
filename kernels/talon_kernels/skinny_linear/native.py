"""The product in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import Library


def skinny_linear_native(library: Library, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias`; x of shape `(..., in)`; all contiguous float32 on the CPU, or a bfloat16 weight."""
    out, inputs = weight.shape
    y = x.new_empty((*x.shape[:-1], out))
    library.linear(
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        y.numel() // out if out else 0,
        out,
        inputs,
        weight.dtype is torch.bfloat16,
        torch.get_num_threads(),
    )
    return y
