"""How kernels find rows that are in pages, and rows in one piece in the same way."""

from __future__ import annotations

import torch
from torch import Tensor

ONE_PAGE = 30
"""Pages of 2**30 rows, of which each sequence has one, are rows in one piece."""


def page_bits(rows: int, least: int = 1) -> int:
    """The logarithm to base 2 of how many rows a page has.

    Args:
        rows: of a page.
        least: how many it must have.

    Raises:
        ValueError: if that is no power of two, or too few.
    """
    if rows < least or rows & (rows - 1):
        raise ValueError(f"a page has {rows} rows; that must be a power of two and at least {least}")
    return rows.bit_length() - 1


def one_page_each(batch: int, device: torch.device) -> tuple[Tensor, int]:
    """The table of sequences whose rows are in one piece, shape `(batch, 1)`, int32, and the bits of their pages."""
    return torch.arange(batch, dtype=torch.int32, device=device)[:, None], ONE_PAGE
