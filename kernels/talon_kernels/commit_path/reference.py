"""Moving accepted rows in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def commit_path_reference(
    buffers: Sequence[Tensor], sequences: Tensor, walks: Tensor, table: Tensor | None = None
) -> None:
    """Shapes as in `commit_path`, any type and device; reads the numbers on the host."""
    for sequence, (length, _, *path) in enumerate(walks.tolist()):
        prefix = int(sequences[sequence, 0])
        source = walks.new_tensor(path[:length]).long() + prefix  # (length,)
        target = torch.arange(prefix, prefix + length, device=walks.device)
        for buffer in buffers:
            if table is None:
                own = buffer[sequence]  # (heads, capacity, dim)
                own[:, target] = own[:, source]  # gathered whole before any is written
            else:
                pages, rows = table[sequence].long(), buffer.shape[2]
                kept = buffer[pages[source // rows], :, source % rows]  # (length, heads, dim)
                buffer[pages[target // rows], :, target % rows] = kept
