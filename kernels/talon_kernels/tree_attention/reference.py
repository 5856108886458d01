"""Tree attention in plain PyTorch, one sequence at a time, with the whole mask."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_core.attention import TreeLayout
from talon_kernels.tree_attention.layout import visible


def tree_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Shapes as in `tree_attention`, any type."""
    out = query.new_zeros((*query.shape[:3], value.shape[3]))  # (batch, heads, queries, value_dim)
    group = query.shape[1] // key.shape[1]
    for row in range(len(layout.parents)):
        mask = torch.from_numpy(visible(layout, row, window)).to(query.device)  # (queries, rows)
        queries, rows = mask.shape
        k = key[row, :, :rows].repeat_interleave(group, dim=0)  # (heads, rows, head_dim)
        v = value[row, :, :rows].repeat_interleave(group, dim=0)
        score = query[row, :, :queries] @ k.transpose(1, 2) * scale  # (heads, queries, rows)
        if softcap is not None:
            score = torch.tanh(score / softcap) * softcap
        score = score.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            sink = sinks.to(score.dtype)[:, None, None].expand(-1, queries, 1)
            score = torch.cat([score, sink], dim=-1)
        prob = torch.softmax(score, dim=-1)[..., :rows]
        out[row, :, :queries] = prob @ v
    return out
