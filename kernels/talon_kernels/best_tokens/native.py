"""The best tokens in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import Library
from talon_kernels.recorded.tape import noting


def best_tokens_native(library: Library, scores: Tensor, width: int) -> Tensor:
    """Shapes as in `best_tokens`; contiguous float32 on the CPU."""
    rows, tokens = scores.shape
    width = min(width, tokens)
    tape = noting()
    if tape is not None:
        return tape.best_tokens(scores, width)
    out = scores.new_empty((rows, 2 * width))
    library.best_tokens(scores.data_ptr(), out.data_ptr(), rows, tokens, width, torch.get_num_threads())
    return out
