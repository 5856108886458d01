"""Moves the keys and values of accepted paths to the end of their prefixes, those of all layers at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from talon_kernels.commit_path.buffers import BufferTable
from talon_kernels.commit_path.reference import commit_path_reference
from talon_kernels.paging import page_bits
from talon_kernels.triton_runtime import takes_triton

__all__ = ["BufferTable", "commit_path"]


def commit_path(
    buffers: BufferTable | Sequence[Tensor],
    sequences: Tensor,
    walks: Tensor,
    table: Tensor | None = None,
    *,
    backend: str | None = None,
) -> None:
    """Move the rows of each sequence's accepted path to the end of its prefix, in all buffers, in place.

    For each sequence `b`, with `length, _, *path = walks[b]`, `prefix = sequences[b, 0]` and `i < length`: row
    `prefix + i` of `b` becomes what was in row `prefix + path[i]`, for all heads of all buffers. All other rows keep
    their bits. Where keys and values are in pages, row `r` of `b` is row `r % rows` of page `table[b, r // rows]`.

    With the triton backend it is one launch, whose size depends on shapes alone; which rows are moved is read in device
    memory, so a captured CUDA graph can go on with new numbers. It needs a `BufferTable` made before the capture.

    Args:
        buffers: the keys and values of every layer, or the `BufferTable` of them.
        sequences: shape `(batch, 4)`, int32, contiguous, as in `PackedLayout`; the prefix lengths, in the first column,
            are all that is read.
        walks: shape `(batch, 2 + longest)`, int32, contiguous, as `greedy_walk` returns it: number of nodes of the
            path, at most `longest` and 0 for no path, then the next token, then the nodes. They are ascending, so
            `path[i] >= i`, and have a row in each buffer, so `prefix + path[i] < capacity`. That is not checked: it
            would mean to wait for the device.
        table: the pages of each sequence, shape `(batch, most)`, int32, its rows of numbers side by side; the buffers'
            first dimension is pages then, all of one size, a power of two rows. What is behind the pages that a
            sequence has is not read. None where the first dimension is the sequences.
        backend: "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is first used) or "reference";
            None takes triton for tensors on a GPU if it is installed.

    Raises:
        ValueError: if shapes, types or devices do not fit, pages have no power of two rows, or the backend asked for
            cannot run.
    """
    known = buffers if isinstance(buffers, BufferTable) else BufferTable(buffers)
    batch = known.batch if table is None else len(table)
    if sequences.shape != (batch, 4) or walks.dim() != 2 or walks.shape[0] != batch or walks.shape[1] < 2:
        whose = "buffers" if table is None else "table"
        raise ValueError(
            f"sequences is (batch, 4) and walks (batch, 2 + longest), the batch of the {whose} is {batch}; "
            f"got {tuple(sequences.shape)} and {tuple(walks.shape)}"
        )
    numbers = {"sequences": sequences, "walks": walks} | ({} if table is None else {"table": table})
    for name, tensor in numbers.items():
        if tensor.dtype != torch.int32 or tensor.device != known.slabs.device or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous int32 on {known.slabs.device}, where the buffers are; "
                f"got {tensor.dtype} on {tensor.device} with strides {tensor.stride()}"
            )
    bits = 0 if table is None else page_bits(known.rows)
    if takes_triton("commit_path", backend, sequences.device):
        from talon_kernels.commit_path.triton import commit_path_triton

        return commit_path_triton(known.slabs, known.word, sequences, walks, table, bits)
    return commit_path_reference(known.buffers, sequences, walks, table)
