"""Moves the keys and values of accepted paths to the end of their prefixes, those of all layers at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from talon_kernels.commit_path.buffers import BufferTable
from talon_kernels.commit_path.reference import commit_path_reference
from talon_kernels.triton_runtime import takes_triton

__all__ = ["BufferTable", "commit_path"]


def commit_path(
    buffers: BufferTable | Sequence[Tensor], sequences: Tensor, walks: Tensor, *, backend: str | None = None
) -> None:
    """Move the rows of each sequence's accepted path to the end of its prefix, in all buffers, in place.

    For each sequence `b`, with `length, _, *path = walks[b]`, `prefix = sequences[b, 0]` and `i < length`: row
    `prefix + i` of `b` becomes what was in row `prefix + path[i]`, for all heads of all buffers. All other rows keep
    their bits.

    With the triton backend it is one launch, whose size depends on shapes alone; which rows are moved is read in device
    memory, so a captured CUDA graph can go on with new numbers. It needs a `BufferTable` made before the capture.

    Args:
        buffers: the keys and values of every layer, or the table of them.
        sequences: shape `(batch, 4)`, int32, contiguous, as in `PackedLayout`; the prefix lengths, in the first column,
            are all that is read.
        walks: shape `(batch, 2 + longest)`, int32, contiguous, as `greedy_walk` returns it: number of nodes of the
            path, at most `longest` and 0 for no path, then the next token, then the nodes. They are ascending, so
            `path[i] >= i`, and have a row in each buffer, so `prefix + path[i] < capacity`. That is not checked: it
            would mean to wait for the device.
        backend: "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is first used) or "reference";
            None takes triton for tensors on a GPU if it is installed.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    table = buffers if isinstance(buffers, BufferTable) else BufferTable(buffers)
    if sequences.shape != (table.batch, 4) or walks.dim() != 2 or walks.shape[0] != table.batch or walks.shape[1] < 2:
        raise ValueError(
            f"sequences is (batch, 4) and walks (batch, 2 + longest), the buffers' batch is {table.batch}; "
            f"got {tuple(sequences.shape)} and {tuple(walks.shape)}"
        )
    for name, tensor in (("sequences", sequences), ("walks", walks)):
        if tensor.dtype != torch.int32 or tensor.device != table.slabs.device or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous int32 on {table.slabs.device}, where the buffers are; "
                f"got {tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
            )
    if takes_triton("commit_path", backend, sequences.device):
        from talon_kernels.commit_path.triton import commit_path_triton

        return commit_path_triton(table.slabs, table.word, sequences, walks)
    return commit_path_reference(table.buffers, sequences, walks)
