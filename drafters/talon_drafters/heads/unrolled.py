"""Several drafting steps from every place of known texts at once, each fed with what the one before made of it."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from talon_drafters.heads.layers import FeatureHead


def unrolled(head: FeatureHead, embeddings: Tensor, features: Tensor, starts: Tensor, steps: int) -> Iterator[Tensor]:
    """Draft along known texts: the training-time test of EAGLE-3 (section 3.2).

    Args:
        head: what drafts.
        embeddings: of the tokens, shape `(batch, tokens, embedding)`.
        features: the target's at all tokens but the last, shape `(batch, tokens - 1, features)`.
        starts: rows from which it drafts, shape `(batch, starts)`, int64; padded with -1. Row `t` is the pair of
            feature `t` and token `t + 1`.
        steps: how many tokens it drafts.

    Yields:
        For step `k` what `FeatureHead.logits` wants, to guess token `t + 2 + k`, shape `(batch, starts, hidden)`; where
        the text ends before, anything.
    """
    tokens = embeddings.shape[1]
    attention = UnrolledAttention(starts, tokens - 1)
    positions = torch.arange(tokens - 1, device=starts.device).expand(len(starts), -1)
    states, hidden = head(embeddings[:, 1:], head.fuse(features), positions, attention)
    index = starts.clamp(min=0)
    states, hidden = at_places(states, index), at_places(hidden, index)
    yield hidden
    for step in range(1, steps):
        attention.step = step
        at = (index + 1 + step).clamp(max=tokens - 1)
        states, hidden = head(at_places(embeddings, at), states, index + step, attention)
        yield hidden


class UnrolledAttention:
    """Who sees whom while steps are unrolled; an `Attend` for each step.

    In step 0 a row sees the rows up to itself. A row that started at `t` and is at step `k` sees the rows of step 0
    up to `t`, and what it was itself in steps 1 to `k`: just what it sees when it drafts (EAGLE-3, section 3.2).

    Args:
        starts: as in `Batch`.
        rows: rows of step 0.
    """

    def __init__(self, starts: Tensor, rows: int) -> None:
        self.step = 0
        self._hidden = torch.arange(rows, device=starts.device) > starts[:, :, None]  # (batch, starts, rows)
        self._hidden &= (starts >= 0)[:, :, None]  # padding sees everything, so that its softmax has something
        self._first: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.step == 0:
            self._first[layer] = (key, value)
            self._own[layer] = []
            return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        own = self._own[layer]
        own.append((key, value))
        keys, values = self._first[layer]
        batch, heads, starts, size = query.shape
        groups = keys.shape[1]
        grouped = query.view(batch, groups, heads // groups, starts, size) * size**-0.5
        flat = grouped.reshape(batch, groups, -1, size)
        before = (flat @ keys.transpose(-1, -2)).view(batch, groups, heads // groups, starts, -1)
        before = before.masked_fill(self._hidden[:, None, None], -math.inf)
        diagonal = [(grouped * one[:, :, None]).sum(-1, keepdim=True) for one, _ in own]
        weights = torch.softmax(torch.cat([before, *diagonal], dim=-1), dim=-1, dtype=torch.float32).to(value.dtype)
        rows = keys.shape[2]
        out = (weights[..., :rows].reshape(batch, groups, -1, rows) @ values).view_as(grouped)
        for place, (_, one) in enumerate(own):
            out = out + weights[..., rows + place, None] * one[:, :, None]
        return out.reshape(batch, heads, starts, size)


def at_places(states: Tensor, index: Tensor) -> Tensor:
    """`states[b, index[b, s]]`, shape `(batch, starts, width)`."""
    return states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2]))
