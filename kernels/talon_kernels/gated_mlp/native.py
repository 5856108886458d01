"""A gated MLP in C."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from talon_kernels.gated_unit.native import KINDS
from talon_kernels.native import Library
from talon_kernels.recorded.tape import noting
from talon_kernels.stored import Stored, address_of, kind_of, shape_of

Affine = tuple[Stored, Tensor | None]
"""A weight of shape `(out, in)` and a bias of shape `(out,)` or None."""

_THREE = ctypes.c_int64 * 3


def gated_mlp_native(library: Library, x: Tensor, gate: Affine, up: Affine, down: Affine, kind: str) -> Tensor:
    """x of shape `(..., in)`; shapes else as in `gated_mlp`, with biases; contiguous float32 on the CPU.

    Each of the three weights is stored as it likes.
    """
    tape = noting()
    if tape is not None:
        return tape.gated_mlp(x, gate, up, down, KINDS[kind])
    hidden, inputs = shape_of(gate[0])
    out, _ = shape_of(down[0])
    rows = x.numel() // inputs if inputs else 0
    scratch = x.new_empty((2, rows, hidden))
    y = x.new_empty((*x.shape[:-1], out))
    library.gated_mlp(
        x.data_ptr(),
        address_of(gate[0]),
        None if gate[1] is None else gate[1].data_ptr(),
        address_of(up[0]),
        None if up[1] is None else up[1].data_ptr(),
        address_of(down[0]),
        None if down[1] is None else down[1].data_ptr(),
        scratch.data_ptr(),
        y.data_ptr(),
        rows,
        out,
        hidden,
        inputs,
        KINDS[kind],
        _THREE(kind_of(gate[0]), kind_of(up[0]), kind_of(down[0])),
        torch.get_num_threads(),
    )
    return y
