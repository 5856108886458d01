"""The best few tokens of rows of scores, and their log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.best_tokens.native import best_tokens_native
from talon_kernels.best_tokens.reference import best_tokens_reference
from talon_kernels.native import chosen
from talon_kernels.stored import as_stored

__all__ = ["best_tokens"]


MOST_TOKENS = 2**24
"""Whole numbers below this are exact in float32."""


def best_tokens(scores: Tensor, width: int, *, backend: str | None = None) -> Tensor:
    """The best tokens of each row and then their natural log-probabilities under the row's softmax.

    With the native backend a row of the result has the same bits whatever rows lie beside it, and of equal scores the
    earlier comes first. Log-probabilities are NaN where a score is NaN, or the best one is infinite.

    Args:
        scores: shape `(rows, tokens)`, float32 on the CPU, fewer than 2^24 tokens.
        width: how many, best first; all if there are fewer.
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        Shape `(rows, 2 * width)`, float32.

    Raises:
        ValueError: if the shape, type or device does not fit, width is less than 1, or the backend asked for cannot
            run.
    """
    if scores.dim() != 2 or not 1 <= scores.shape[1] < MOST_TOKENS:
        raise ValueError(f"scores are (rows, tokens), of 1 to 2^24 - 1 tokens; got {tuple(scores.shape)}")
    if scores.dtype != torch.float32 or scores.device.type != "cpu":
        raise ValueError(f"best_tokens takes float32 on the CPU, got {scores.dtype} on {scores.device}")
    if width < 1:
        raise ValueError(f"the width is {width}; at least 1 token must be wanted")
    library = chosen("best_tokens", backend)
    if library is None:
        return best_tokens_reference(scores, width)
    return best_tokens_native(library, as_stored(scores), width)
