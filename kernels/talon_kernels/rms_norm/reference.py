"""Root-mean-square normalisation in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * (weight + offset)`; shapes as in `rms_norm`, any type."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * (weight + offset)


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    """`x + residual`, and the norm of it; shapes as in `add_rms_norm`, any type."""
    total = x + residual
    return total, rms_norm_reference(total, weight, eps, offset)
