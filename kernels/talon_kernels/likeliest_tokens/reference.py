"""The most likely token of each row, as it is defined."""

from __future__ import annotations

from torch import Tensor

from talon_kernels.skinny_linear.reference import skinny_linear_reference
from talon_kernels.stored import Stored


def likeliest_tokens_reference(x: Tensor, weight: Stored) -> Tensor:
    """Shapes as in `likeliest_tokens`."""
    return skinny_linear_reference(x, weight, None).argmax(-1)
