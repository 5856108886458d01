"""A gated MLP in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.gated_unit.native import KINDS
from talon_kernels.native import Library

Affine = tuple[Tensor, Tensor | None]
"""A weight of shape `(out, in)` and a bias of shape `(out,)` or None."""


def gated_mlp_native(library: Library, x: Tensor, gate: Affine, up: Affine, down: Affine, kind: str) -> Tensor:
    """x of shape `(..., in)`; shapes else as in `gated_mlp`, with biases; contiguous float32 on the CPU.

    The three weights may be bfloat16, all of them.
    """
    hidden, inputs = gate[0].shape
    out = down[0].shape[0]
    rows = x.numel() // inputs if inputs else 0
    scratch = x.new_empty((2, rows, hidden))
    y = x.new_empty((*x.shape[:-1], out))
    library.gated_mlp(
        x.data_ptr(),
        gate[0].data_ptr(),
        None if gate[1] is None else gate[1].data_ptr(),
        up[0].data_ptr(),
        None if up[1] is None else up[1].data_ptr(),
        down[0].data_ptr(),
        None if down[1] is None else down[1].data_ptr(),
        scratch.data_ptr(),
        y.data_ptr(),
        rows,
        out,
        hidden,
        inputs,
        KINDS[kind],
        gate[0].dtype is torch.bfloat16,
        torch.get_num_threads(),
    )
    return y
