"""A matrix product for few rows: `x @ weight.T + bias` at about the cost of reading `weight` once."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import load, unavailable
from talon_kernels.skinny_linear.native import skinny_linear_native
from talon_kernels.skinny_linear.reference import skinny_linear_reference

__all__ = ["skinny_linear"]

BACKENDS = ("native", "reference")


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """`x @ weight.T + bias`, float32 on the CPU; the weight may be bfloat16.

    A bfloat16 weight is widened as it is read, so the result has the bits of the same weight in float32, at half the
    bytes to read.

    Row invariance: with the native backend a row of the result has the same bits whatever the number of rows of `x`
    and its place among them. PyTorch's own product does not promise that.

    Args:
        x: shape `(rows, in)`.
        weight: shape `(out, in)`.
        bias: shape `(out,)`.
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        Shape `(rows, out)`, contiguous.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    shapes_fit = x.dim() == 2 and weight.dim() == 2 and x.shape[1] == weight.shape[1]
    if not shapes_fit or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(
            f"x, weight and bias are (rows, in), (out, in) and (out,); "
            f"got {[tuple(t.shape) for t in (x, weight, bias) if t is not None]}"
        )
    for tensor in (x, weight, bias):
        if tensor is None:
            continue
        known = tensor.dtype == torch.float32 or (tensor is weight and tensor.dtype == torch.bfloat16)
        if not known or tensor.device.type != "cpu":
            raise ValueError(
                "skinny_linear takes float32 on the CPU, and weights in bfloat16 too, "
                f"got {tensor.dtype} on {tensor.device}"
            )
    if backend not in (None, *BACKENDS):
        raise ValueError(f"no backend '{backend}' of skinny_linear; there are: {', '.join(BACKENDS)}")
    library = load() if backend != "reference" else None
    if library is None:
        if backend == "native":
            raise ValueError(f"backend 'native' cannot be used here: {unavailable()}")
        return skinny_linear_reference(x, weight, bias)
    return skinny_linear_native(
        library, x.contiguous(), weight.contiguous(), bias.contiguous() if bias is not None else None
    )
