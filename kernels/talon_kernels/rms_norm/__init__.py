"""Root-mean-square normalisation in one pass, of a sum too."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import chosen, on_the_cpu
from talon_kernels.rms_norm.native import rms_norm_native
from talon_kernels.rms_norm.reference import add_rms_norm_reference, rms_norm_reference
from talon_kernels.stored import as_stored
from talon_kernels.triton_runtime import takes_triton

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0, *, backend: str | None = None) -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * (weight + offset)` over the last dimension.

    With the native backend a row of the result has the same bits whatever rows lie beside it. That of Triton computes
    in float32 and rounds once.

    Args:
        x: shape `(..., hidden)`; float32 on the CPU, and on a GPU bfloat16 or float16 as well.
        weight: shape `(hidden,)`, as x.
        eps: added to the mean square.
        offset: added to the weight; Gemma's layers have 1, most others 0.
        backend: "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is first used), "native" (C, on
            the CPU) or "reference"; None takes triton for tensors on a GPU and native on the CPU, if they can run.

    Returns:
        The shape of x, contiguous.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    _check(x, weight)
    if takes_triton("rms_norm", backend, x.device, ("native",), x.dtype):
        from talon_kernels.rms_norm.triton import rms_norm_triton

        return rms_norm_triton(x.contiguous(), weight.contiguous(), eps, offset)
    library = chosen("rms_norm", backend) if on_the_cpu("rms_norm", backend, x) else None
    if library is None:
        return rms_norm_reference(x, weight, eps, offset)
    return rms_norm_native(library, as_stored(x), as_stored(weight), eps, offset)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of what a layer gives and what went past it, and the norm of that sum.

    Args:
        x: as for `rms_norm`.
        residual: as x.
        weight: as for `rms_norm`, and so are eps and offset.
        eps: as there.
        offset: as there.
        backend: "triton" or "reference"; None takes triton for tensors on a GPU, if it can run.

    Returns:
        `x + residual`, rounded to its type, and the norm of what that is then; both of the shape of x, contiguous.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    _check(x, weight)
    if (residual.shape, residual.dtype, residual.device) != (x.shape, x.dtype, x.device):
        raise ValueError(
            f"x is {tuple(x.shape)}, {x.dtype} on {x.device}, and residual {tuple(residual.shape)}, "
            f"{residual.dtype} on {residual.device}; they must be alike"
        )
    if takes_triton("add_rms_norm", backend, x.device, dtype=x.dtype):
        from talon_kernels.rms_norm.triton import add_rms_norm_triton

        return add_rms_norm_triton(x.contiguous(), residual.contiguous(), weight.contiguous(), eps, offset)
    return add_rms_norm_reference(x, residual, weight, eps, offset)


def _check(x: Tensor, weight: Tensor) -> None:
    if x.dim() == 0 or weight.shape != x.shape[-1:]:
        raise ValueError(f"x is (..., hidden), weight (hidden,); got {tuple(x.shape)} and {tuple(weight.shape)}")
    if (x.dtype, x.device) != (weight.dtype, weight.device) or x.dtype is torch.float64:
        raise ValueError(
            f"x is {x.dtype} on {x.device} and weight {weight.dtype} on {weight.device}; "
            "they must be of one type, float32 or a smaller one, on one device"
        )
