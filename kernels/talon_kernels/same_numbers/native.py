"""The comparison in C: reads both tensors once, with PyTorch's threads."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.native import Library


def same_numbers_native(library: Library, narrow: Tensor, wide: Tensor) -> bool:
    """As `same_numbers`; both contiguous."""
    return bool(library.same_numbers(narrow.data_ptr(), wide.data_ptr(), wide.numel(), torch.get_num_threads()))
