"""Drawn tokens in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_core.tree import FloatArray
from talon_kernels.native import Library


def drawn_tokens_native(library: Library, scores: Tensor, warps: FloatArray, numbers: FloatArray) -> Tensor:
    """As in `drawn_tokens`; `scores` and `numbers` are contiguous, and `warps` what `warps_of` makes of them."""
    rows, tokens = scores.shape
    out = torch.empty(rows, dtype=torch.int64)
    at = warps.ctypes.data, numbers.ctypes.data, out.data_ptr()
    library.draw_tokens(scores.data_ptr(), rows, tokens, *at, torch.get_num_threads())
    return out
