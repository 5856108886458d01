"""Rows of a matrix in blocks, widened in C."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_core.runtime.blocks import Blocks
from talon_kernels.native import Library
from talon_kernels.recorded.tape import noting


def widen_native(library: Library, blocks: Blocks, rows: Tensor) -> Tensor:
    """Rows of the matrix, from integers of any shape to `(.., columns)`, float32; all on the CPU.

    Raises:
        IndexError: if there is no such row.
    """
    tape = noting()
    if tape is not None:
        return tape.embedding(blocks, rows)
    index = rows.to(torch.int64).contiguous()
    count = len(blocks.data)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise IndexError(f"rows {index.min()} to {index.max()} are asked for; there are {count} rows, from 0 on")
    out = torch.empty((*rows.shape, blocks.columns), dtype=torch.float32, device="cpu")
    threads = torch.get_num_threads()
    library.widen(
        blocks.data.data_ptr(), index.data_ptr(), out.data_ptr(), index.numel(), blocks.columns, blocks.kind, threads
    )
    return out
