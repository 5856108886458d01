"""A matrix product for few rows: `x @ weight.T + bias` at about the cost of reading `weight` once."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_core.runtime.blocks import Blocks
from talon_kernels.native import chosen
from talon_kernels.skinny_linear.native import skinny_linear_native
from talon_kernels.skinny_linear.reference import skinny_linear_reference
from talon_kernels.stored import Stored, as_stored, shape_of

__all__ = ["skinny_linear"]


def skinny_linear(x: Tensor, weight: Stored, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """`x @ weight.T + bias`, float32 on the CPU; the weight may be bfloat16, or in GGUF's blocks.

    Such a weight is widened as it is read, so the result has the bits of the same weight in float32, at a half or a
    sixth of the bytes to read.

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
    data = weight.data if isinstance(weight, Blocks) else weight
    shapes = [tuple(x.shape), shape_of(weight) if data.dim() == 2 else tuple(data.shape)]
    shapes += [] if bias is None else [tuple(bias.shape)]
    shapes_fit = x.dim() == 2 and data.dim() == 2 and x.shape[1] == shapes[1][1]
    if not shapes_fit or (bias is not None and bias.shape != data.shape[:1]):
        raise ValueError(f"x, weight and bias are (rows, in), (out, in) and (out,); got {shapes}")
    for tensor in (x, data, bias):
        if tensor is None:
            continue
        known = tensor.dtype == torch.float32 or (tensor is data and tensor.dtype == torch.bfloat16)
        if not (known or (isinstance(weight, Blocks) and tensor is data)) or tensor.device.type != "cpu":
            raise ValueError(
                "skinny_linear takes float32 on the CPU, and weights in bfloat16 or blocks too, "
                f"got {tensor.dtype} on {tensor.device}"
            )
    library = chosen("skinny_linear", backend)
    if library is None:
        return skinny_linear_reference(x, weight, bias)
    whole = weight if isinstance(weight, Blocks) else as_stored(weight)
    return skinny_linear_native(library, as_stored(x), whole, as_stored(bias) if bias is not None else None)
