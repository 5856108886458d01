"""What tells the weights of one model from those of another."""

import hashlib
from typing import Any

import torch
from torch import nn

from talon_core.runtime.blocks import InBlocks, named_weights

FIRST = 64
"""Numbers of each weight that tell checkpoints apart."""


@torch.no_grad()
def weights_hash(model: Any) -> str:
    """Tells two checkpoints apart without reading all of them: of each weight's name, shape and first 64 numbers.

    It is the same for weights in blocks and for the numbers that they stand for.
    """
    digest = hashlib.sha256()
    for name, weight in named_weights(model):
        shape = shape_of(weight)
        if isinstance(weight, InBlocks):
            rows = torch.arange(min(shape[0], -(-FIRST // shape[1])))
            numbers, dtype = weight.numbers(rows), weight.like.dtype
        else:
            numbers, dtype = weight.detach(), weight.dtype
        first = numbers.reshape(-1)[:FIRST].float().cpu().numpy()
        digest.update(f"{name} {shape} {dtype}".encode() + first.tobytes())
    return digest.hexdigest()


def shape_of(weight: nn.Parameter | InBlocks) -> tuple[int, ...]:
    """The shape of a weight, also where its numbers are in blocks."""
    return weight.weight_shape if isinstance(weight, InBlocks) else tuple(weight.shape)
