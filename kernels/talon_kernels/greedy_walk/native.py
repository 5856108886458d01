"""The greedy walk in C, on the host."""

from __future__ import annotations

from torch import Tensor

from talon_kernels.native import Library


def greedy_walk_native(
    library: Library, best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
) -> Tensor:
    """Shapes as in `greedy_walk`; contiguous, on the CPU."""
    best, ends = best.long(), ends.long()
    batch = len(sequences)
    walks = sequences.new_empty((batch, 2 + longest))
    numbers = (one.data_ptr() for one in (best, tokens, parents, sequences))
    library.greedy_walk(*numbers, batch, ends.data_ptr(), len(ends), longest, walks.data_ptr())
    return walks
