"""Rows of a matrix in GGUF's blocks as float32 numbers, those that GGUF's own reader gives."""

from __future__ import annotations

from torch import Tensor

from talon_core.runtime.blocks import Blocks
from talon_kernels.native import chosen
from talon_kernels.widening.native import widen_native
from talon_kernels.widening.reference import widen_reference

__all__ = ["widen"]


def widen(blocks: Blocks, rows: Tensor, *, backend: str | None = None) -> Tensor:
    """The numbers of some rows.

    Args:
        blocks: the matrix, on the CPU.
        rows: which rows, integers of any shape.
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        Shape `(.., columns)`, float32, with the bits of `gguf.quants.dequantize`.

    Raises:
        IndexError: if there is no such row.
        ValueError: if the blocks are elsewhere, or the backend asked for cannot run.
    """
    if not blocks.data.is_cpu or not rows.is_cpu:
        raise ValueError(f"widen takes blocks and rows on the CPU, got {blocks.data.device} and {rows.device}")
    library = chosen("widen", backend)
    if library is None:
        return widen_reference(blocks, rows)
    return widen_native(library, blocks, rows)
