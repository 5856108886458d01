"""A gated MLP in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def gated_mlp_reference(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, kind: str) -> Tensor:
    """`(act(x @ gate.T) * (x @ up.T)) @ down.T`; shapes as in `gated_mlp`, any type."""
    hidden = F.linear(x, gate)
    activated = F.silu(hidden) if kind == "silu" else F.gelu(hidden, approximate="tanh")
    return F.linear(activated * F.linear(x, up), down)
