"""Root-mean-square normalisation in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * (weight + offset)`; shapes as in `rms_norm`, any type."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * (weight + offset)
