"""The product in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from talon_core.runtime.blocks import Blocks
from talon_kernels.stored import Stored


def skinny_linear_reference(x: Tensor, weight: Stored, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias`; shapes as in `skinny_linear`, any type."""
    weight = (weight.widened() if isinstance(weight, Blocks) else weight).to(x.dtype)
    # MKL takes several times one row's time for a few rows in the usual orientation, but not in the other.
    if x.device.type == "cpu" and 2 <= x.shape[0] <= 48:
        y = (weight @ x.T).T.contiguous()
        return y if bias is None else y + bias
    return F.linear(x, weight, bias)
