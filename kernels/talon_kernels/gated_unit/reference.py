"""The gate of a gated MLP in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def gated_unit_reference(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """`act(gate) * up`; shapes as in `gated_unit`, any type."""
    return (F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")) * up
