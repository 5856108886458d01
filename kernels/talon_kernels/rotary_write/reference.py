"""Rotary position embedding, and the write of keys and values into pages, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_write_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    rows: Tensor,
    interleaved: bool,
    of_pairs: bool,
) -> Tensor:
    """Shapes as in `rotary_write`, any type; of rows that go to one place one is written."""
    keys[pages, :, rows] = turned(key, cos, sin, interleaved, of_pairs)
    values[pages, :, rows] = value
    return turned(query, cos, sin, interleaved, of_pairs)


def turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, of_pairs: bool) -> Tensor:
    """Each pair `(a, b)` of the first dimensions of each head becomes `(a cos - b sin, b cos + a sin)`.

    Args:
        x: shape `(rows, heads, head_dim)`.
        cos: as in `rotary_write`, and so are the others.
        sin: as there.
        interleaved: as there.
        of_pairs: as there.
    """
    if of_pairs:
        cos, sin = (one.repeat_interleave(2, -1) if interleaved else torch.cat([one, one], -1) for one in (cos, sin))
    rotary = cos.shape[-1]
    first, kept = x[..., :rotary], x[..., rotary:]
    if interleaved:
        other = torch.stack([-first[..., 1::2], first[..., ::2]], -1).flatten(-2)
    else:
        a, b = first.chunk(2, -1)
        other = torch.cat([-b, a], -1)
    return torch.cat([(first * cos[:, None] + other * sin[:, None]).to(x.dtype), kept], -1)
