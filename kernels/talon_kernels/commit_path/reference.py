"""Moving accepted rows in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def commit_path_reference(buffers: Sequence[Tensor], sequences: Tensor, walks: Tensor) -> None:
    """Shapes as in `commit_path`, any type and device; reads the numbers on the host."""
    for sequence, (length, _, *path) in enumerate(walks.tolist()):
        prefix = int(sequences[sequence, 0])
        sources = walks.new_tensor(path[:length]) + prefix  # (length,)
        for buffer in buffers:
            own = buffer[sequence]  # (heads, capacity, dim)
            own[:, prefix : prefix + length] = own.index_select(1, sources)  # gathered whole before any is written
