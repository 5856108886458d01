"""Tree attention by PyTorch's `scaled_dot_product_attention`, with a mask made once per forward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from talon_core.attention import TreeLayout
from talon_kernels.tree_attention.layout import PerLayout, visible

_kept: PerLayout[dict[tuple[int | None, int, torch.device], list[Tensor | None]]] = PerLayout(lambda _: {})


def tree_attention_sdpa(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, *, scale: float, window: int | None = None
) -> Tensor:
    """Shapes as in `tree_attention`, any type and device."""
    heads, kv_heads = query.shape[0], key.shape[1]
    parts = []
    for sequence, mask in enumerate(_masks(layout, window, heads // kv_heads, query.device)):
        own = query[:, layout.starts[sequence] : layout.starts[sequence + 1]]  # (heads, queries, head_dim)
        queries, used = own.shape[1], int(layout.prefix_lengths[sequence] + layout.nodes[sequence])
        if queries == 0:
            continue
        # Query heads that share a key head become further queries of it: the keys are not copied.
        folded = own.reshape(1, kv_heads, -1, own.shape[2])
        out = F.scaled_dot_product_attention(
            folded,
            key[sequence, None, :, :used],
            value[sequence, None, :, :used],
            attn_mask=mask,
            scale=scale,
        )
        parts.append(out.reshape(heads, queries, value.shape[3]))
    if not parts:
        return query.new_zeros((heads, 0, value.shape[3]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _masks(layout: TreeLayout, window: int | None, group: int, device: torch.device) -> list[Tensor | None]:
    """For each sequence the rows that its queries see, shape `(group * queries, rows)`; None if they see all."""
    kept = _kept(layout)
    at = (window, group, device)
    if at not in kept:
        seen = [visible(layout, sequence, window) for sequence in range(len(layout.parents))]
        kept[at] = [None if mask.all() else torch.from_numpy(mask).to(device).repeat(group, 1) for mask in seen]
    return kept[at]
