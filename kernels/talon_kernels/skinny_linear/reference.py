"""The product in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def skinny_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias`; shapes as in `skinny_linear`, any type."""
    weight = weight.to(x.dtype)
    # MKL takes several times one row's time for a few rows in the usual orientation, but not in the other.
    if x.device.type == "cpu" and 2 <= x.shape[0] <= 48:
        y = (weight @ x.T).T.contiguous()
        return y if bias is None else y + bias
    return F.linear(x, weight, bias)
