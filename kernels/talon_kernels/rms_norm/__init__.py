"""Root-mean-square normalisation in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import chosen
from talon_kernels.rms_norm.native import rms_norm_native
from talon_kernels.rms_norm.reference import rms_norm_reference

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, *, backend: str | None = None) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * (weight + offset)` over the last dimension.

    With the native backend a row of the result has the same bits whatever rows lie beside it.

    Args:
        x: shape `(..., hidden)`, float32 on the CPU.
        weight: shape `(hidden,)`, as x.
        eps: added to the mean square.
        offset: added to the weight; Gemma's layers have 1, most others 0.
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        The shape of x, contiguous.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    if x.dim() == 0 or weight.shape != x.shape[-1:]:
        raise ValueError(f"x is (..., hidden), weight (hidden,); got {tuple(x.shape)} and {tuple(weight.shape)}")
    for tensor in (x, weight):
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"rms_norm takes float32 on the CPU, got {tensor.dtype} on {tensor.device}")
    library = chosen("rms_norm", backend)
    if library is None:
        return rms_norm_reference(x, weight, eps, offset)
    return rms_norm_native(library, x.contiguous(), weight.contiguous(), eps, offset)
