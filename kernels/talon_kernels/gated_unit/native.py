"""The gate of a gated MLP in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import Library

KINDS = {"silu": 0, "gelu_tanh": 1}
"""The activations, and their numbers in `talon.h`."""


def gated_unit_native(library: Library, gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """Shapes as in `gated_unit`; contiguous float32 on the CPU."""
    out = torch.empty_like(gate)
    library.gated_unit(
        gate.data_ptr(), up.data_ptr(), out.data_ptr(), out.numel(), KINDS[kind], torch.get_num_threads()
    )
    return out
