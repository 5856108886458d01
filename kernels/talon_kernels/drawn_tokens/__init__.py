"""Tokens drawn from rows of scores on a CPU, with given numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.host_draws import Warp, warps_of
from talon_core.tree import FloatArray
from talon_kernels.drawn_tokens.native import drawn_tokens_native
from talon_kernels.drawn_tokens.reference import drawn_tokens_reference
from talon_kernels.native import chosen
from talon_kernels.stored import as_stored

__all__ = ["drawn_tokens"]


def drawn_tokens(scores: Tensor, warps: Sequence[Warp], numbers: FloatArray, *, backend: str | None = None) -> Tensor:
    """Draw a token from each row's law, the softmax of its warped scores in float64, by inversion.

    What comes out is the first token up to which the law adds up to more than the number's share of its sum, as with
    `talon_core.SeededChoices`. A row's token is the same whatever rows lie beside it, and on however many threads.

    Args:
        scores: shape `(rows, tokens)`, float32 on the CPU, fewer than 2^31 tokens.
        warps: of each row what is done to its scores.
        numbers: shape `(rows,)`, float64, in [0, 1).
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        Tokens, shape `(rows,)`, int64; `NO_TOKEN` where the scores hold NaN or infinity, or forbid every token.

    Raises:
        ValueError: if the shape, type or device does not fit, or the backend asked for cannot run.
    """
    if scores.dim() != 2 or not 1 <= scores.shape[1] < 2**31:
        raise ValueError(f"scores are (rows, tokens), of 1 to 2^31 - 1 tokens; got {tuple(scores.shape)}")
    if scores.dtype != torch.float32 or scores.device.type != "cpu":
        raise ValueError(f"drawn_tokens takes float32 on the CPU, got {scores.dtype} on {scores.device}")
    if not len(warps) == len(scores) == len(numbers):
        raise ValueError(
            f"each row has a warp and a number; got {len(scores)} rows, {len(warps)} warps and {len(numbers)} numbers"
        )
    if not ((numbers >= 0) & (numbers < 1)).all():
        raise ValueError(f"numbers are in [0, 1); got {numbers[~((numbers >= 0) & (numbers < 1))][0]}")
    library = chosen("drawn_tokens", backend)
    if library is None:
        return drawn_tokens_reference(scores, warps, numbers)
    given = np.ascontiguousarray(numbers, dtype=np.float64)
    return drawn_tokens_native(library, as_stored(scores), warps_of(warps), given)
