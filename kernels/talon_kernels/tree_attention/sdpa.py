"""Tree attention by PyTorch's `scaled_dot_product_attention`, with a mask made once per forward pass."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from talon_core.attention import TreeLayout
from talon_kernels.tree_attention.layout import PerLayout, visible

MaskKey = tuple[int, int | None, torch.device]

_masks: PerLayout[dict[MaskKey, Tensor | None]] = PerLayout(lambda _: {})


def tree_attention_sdpa(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, *, scale: float, window: int | None = None
) -> Tensor:
    """Shapes as in `tree_attention`, any type and device."""
    batch, heads, queries, head_dim = query.shape
    ends = {int(prefix) + len(tree) for prefix, tree in zip(layout.prefix_lengths, layout.parents, strict=True)}
    if len(ends) > 1:
        # A masked row still takes part in the product, and behind the end of a shorter sequence there may be NaN.
        rows = [
            tree_attention_sdpa(query[b, None], key[b, None], value[b, None], part, scale=scale, window=window)
            for b, part in enumerate(_rows(layout))
        ]
        return torch.cat(rows)
    used = max(ends, default=0)
    if used == 0 or queries == 0:
        return query.new_zeros((batch, heads, queries, value.shape[3]))
    masks = _masks(layout)
    at = (queries, window, query.device)
    if at not in masks:
        masks[at] = _mask(layout, queries, used, window, query.device)
    mask = masks[at]
    # Query heads that share a key head become further queries of it: the keys are not copied.
    kv_heads = key.shape[1]
    group = heads // kv_heads
    folded = query.reshape(batch, kv_heads, group * queries, head_dim)
    if mask is not None:
        mask = mask[:, None, None].expand(batch, 1, group, queries, used).reshape(batch, 1, group * queries, used)
    out = F.scaled_dot_product_attention(folded, key[:, :, :used], value[:, :, :used], attn_mask=mask, scale=scale)
    out = out.reshape(batch, heads, queries, value.shape[3])
    for row, tree in enumerate(layout.parents):
        asked = len(tree) - int(layout.first_queries[row])
        if asked < queries:
            out[row, :, asked:] = 0
    return out


def _split(layout: TreeLayout) -> tuple[TreeLayout, ...]:
    """One layout for each sequence."""
    single = [slice(row, row + 1) for row in range(len(layout.parents))]
    return tuple(TreeLayout(layout.prefix_lengths[b], layout.parents[b], layout.first_queries[b]) for b in single)


_rows = PerLayout(_split)


def _mask(layout: TreeLayout, queries: int, used: int, window: int | None, device: torch.device) -> Tensor | None:
    """Visible rows, shape `(batch, queries, used)`; None if every query sees every row."""
    mask = np.zeros((len(layout.parents), queries, used), dtype=np.bool_)
    for row in range(len(layout.parents)):
        seen = visible(layout, row, window)
        mask[row, : seen.shape[0], : seen.shape[1]] = seen
        mask[row, seen.shape[0] :, 0] = True  # a padded query that sees nothing would be NaN
    return None if mask.all() else torch.from_numpy(mask).to(device)
