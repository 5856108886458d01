"""The most likely token of each row: where `x @ weight.T` is largest, without most of its products."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_core.runtime.blocks import Blocks
from talon_kernels.likeliest_tokens.native import Screen, likeliest_tokens_native
from talon_kernels.likeliest_tokens.reference import likeliest_tokens_reference
from talon_kernels.native import chosen
from talon_kernels.skinny_linear.native import skinny_linear_native
from talon_kernels.stored import Stored, as_stored, shape_of

__all__ = ["Screen", "likeliest_tokens"]


def likeliest_tokens(x: Tensor, weight: Stored, *, backend: str | None = None) -> Tensor:
    """`(x @ weight.T).argmax(-1)`, of equals the first, NaN being larger than any number; float32 on the CPU.

    The native backend reads a screen of the weight, in 8 bits a number, and computes only the elements that can be the
    largest. It says what `skinny_linear` and `argmax` say, to the bit. Here the screen is made at each call, and that
    takes longer than the product: a recorded pass has it made once.

    Args:
        x: shape `(rows, in)`, float32.
        weight: shape `(out, in)`, float32 or bfloat16, or in GGUF's blocks; neither is 0.
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        Shape `(rows,)`, int64.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    data = weight.data if isinstance(weight, Blocks) else weight
    shapes = tuple(x.shape), shape_of(weight) if data.dim() == 2 else tuple(data.shape)
    if x.dim() != 2 or data.dim() != 2 or x.shape[1] != shapes[1][1] or not shapes[1][0] or not shapes[1][1]:
        raise ValueError(f"x and weight are (rows, in) and (out, in), with something to choose from; got {shapes}")
    known = data.dtype in (torch.float32, torch.bfloat16) or isinstance(weight, Blocks)
    if x.dtype is not torch.float32 or not known or {x.device.type, data.device.type} != {"cpu"}:
        raise ValueError(
            "likeliest_tokens takes float32 on the CPU, and weights in bfloat16 or blocks too, "
            f"got {x.dtype} on {x.device} and {data.dtype} on {data.device}"
        )
    library = chosen("likeliest_tokens", backend)
    if library is None:
        return likeliest_tokens_reference(x, weight)
    whole = weight if isinstance(weight, Blocks) else as_stored(weight)
    screen = Screen.of(library, whole)
    if screen is None:  # a number of the weight is not finite
        return skinny_linear_native(library, as_stored(x), whole, None).argmax(-1)
    return likeliest_tokens_native(library, as_stored(x), whole, screen)
