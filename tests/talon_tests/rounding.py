"""The error that a kernel may have which rounds to a small type."""

import torch
from torch import Tensor


def check_rounded(got: Tensor, low: Tensor, truth: Tensor) -> None:
    """Twice the error of the reference in its type, and one rounding step of the largest number.

    Args:
        got: what the kernel gives.
        low: what the reference gives of the same numbers.
        truth: what it gives of them in float64.
    """
    assert got.shape == low.shape
    assert got.dtype == low.dtype
    if not got.numel():
        return
    got, low = got.cpu().double(), low.cpu()
    step = torch.finfo(low.dtype).eps * truth.abs().max().item()
    allowed = 2 * (low.double() - truth).abs().max().item() + step
    assert (got - truth).abs().max().item() <= allowed
