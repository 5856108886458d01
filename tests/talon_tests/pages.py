"""Keys and values in pages, made of rows that are in one piece."""

from collections.abc import Sequence

import torch
from torch import Tensor

NOWHERE = 2**30
"""What a table says where a sequence has no page: whoever reads there is seen."""


def paged(buffers: Sequence[Tensor], used: Sequence[int], page: int, seed: int) -> tuple[list[Tensor], Tensor]:
    """Buffers of pages with the same rows, in an order drawn at random, and the table that finds them.

    Args:
        buffers: each `(batch, heads, capacity, size)`.
        used: rows of each sequence that are kept; the others are left out.
        page: rows of a page.
        seed: of the order.

    Returns:
        Each `(pages, heads, page, size)`, with NaN in the rows and pages that nobody has, and with the dimensions in
        the order in which they are in memory; and the table, `(batch, most)`, int32.
    """
    random = torch.Generator().manual_seed(seed)
    counts = [-(-end // page) for end in used]
    order = torch.randperm(sum(counts) + 3, generator=random).tolist()
    table = torch.full((len(used), max(counts, default=0) + 1), NOWHERE, dtype=torch.int32)
    made = [_like(buffer, sum(counts) + 3, page) for buffer in buffers]
    for sequence, (count, end) in enumerate(zip(counts, used, strict=True)):
        for number in range(count):
            table[sequence, number] = own = order.pop()
            rows = slice(number * page, min(end, (number + 1) * page))
            for new, buffer in zip(made, buffers, strict=True):
                new[own, :, : rows.stop - rows.start] = buffer[sequence, :, rows]
    return made, table.to(buffers[0].device)


def _like(buffer: Tensor, pages: int, page: int) -> Tensor:
    """Pages of NaN, with the dimensions in memory as a buffer has them."""
    shape = (pages, buffer.shape[1], page, buffer.shape[3])
    order = sorted(range(4), key=lambda dim: -buffer.stride(dim))
    stored = torch.full([shape[dim] for dim in order], torch.nan, dtype=buffer.dtype, device=buffer.device)
    return stored.permute([order.index(dim) for dim in range(4)])
