"""How a weight is stored: what the products in C are told of it."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_core.runtime.blocks import Blocks

FLOAT32, BFLOAT16 = 0, 30
"""GGUF's numbers of two types; those of blocks come with them."""

Stored = Tensor | Blocks
"""A weight of shape `(out, in)`: float32 or bfloat16, contiguous on the CPU, or blocks."""


def as_stored(tensor: Tensor) -> Tensor:
    """The tensor with its numbers in memory, one behind another; those of a negated view are not there before."""
    return tensor.resolve_neg().contiguous()


def shape_of(weight: Stored) -> tuple[int, int]:
    """Its rows and columns."""
    if isinstance(weight, Blocks):
        return weight.data.shape[0], weight.columns
    return weight.shape[0], weight.shape[1]


def address_of(weight: Stored) -> int:
    """Where it begins."""
    return (weight.data if isinstance(weight, Blocks) else weight).data_ptr()


def kind_of(weight: Stored) -> int:
    """GGUF's number of its type."""
    if isinstance(weight, Blocks):
        return weight.kind
    return BFLOAT16 if weight.dtype is torch.bfloat16 else FLOAT32
