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
    parts = []
    group = query.shape[0] // key.shape[1]
    for sequence in range(len(layout.parents)):
        mask = torch.from_numpy(visible(layout, sequence, window)).to(query.device)  # (queries, rows)
        queries, rows = mask.shape
        k = key[sequence, :, :rows].repeat_interleave(group, dim=0)  # (heads, rows, head_dim)
        v = value[sequence, :, :rows].repeat_interleave(group, dim=0)
        own = query[:, layout.starts[sequence] : layout.starts[sequence + 1]]
        score = own @ k.transpose(1, 2) * scale  # (heads, queries, rows)
        if softcap is not None:
            score = torch.tanh(score / softcap) * softcap
        score = score.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            sink = sinks.to(score.dtype)[:, None, None].expand(-1, queries, 1)
            score = torch.cat([score, sink], dim=-1)
        prob = torch.softmax(score, dim=-1)[..., :rows]
        parts.append(prob @ v)
    return torch.cat(parts, dim=1)
