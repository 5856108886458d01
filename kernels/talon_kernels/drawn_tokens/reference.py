"""Drawn tokens in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.host_draws import Warp
from talon_core.target import NO_TOKEN
from talon_core.tree import FloatArray


def drawn_tokens_reference(scores: Tensor, warps: Sequence[Warp], numbers: FloatArray) -> Tensor:
    """Shapes as in `drawn_tokens`."""
    rows = zip(scores.numpy(), warps, numbers.tolist(), strict=True)
    return torch.tensor([_drawn(row, warp, number) for row, warp, number in rows], dtype=torch.int64)


def _drawn(scores: FloatArray, warp: Warp, number: float) -> int:
    with np.errstate(over="ignore"):
        divided = scores / np.float32(warp.temperature)
    highest = divided.max()
    if not np.isfinite(highest):
        return NO_TOKEN
    if warp.best:
        counted = scores if warp.best_first else divided
        least = np.sort(counted)[-min(warp.best, len(counted))]
        divided = np.where(counted >= least, divided, -np.inf)
    upto = np.cumsum(np.exp(divided.astype(np.float64) - float(highest)))
    return int(np.searchsorted(upto, min(number * upto[-1], np.nextafter(upto[-1], -1.0)), side="right"))
