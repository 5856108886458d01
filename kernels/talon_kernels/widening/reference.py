"""Rows widened by GGUF's own reader."""

from __future__ import annotations

from torch import Tensor

from talon_core.runtime.blocks import Blocks


def widen_reference(blocks: Blocks, rows: Tensor) -> Tensor:
    """Shapes as in `widen`."""
    return blocks.widened(rows.reshape(-1)).reshape(*rows.shape, blocks.columns)
