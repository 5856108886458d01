"""EAGLE-3's training-time test: several drafting steps in a row, each fed with what the one before made of it."""

import math

import torch
from torch import Tensor, nn

from talon_drafters.heads.layers import FeatureHead
from talon_drafters.training.losses import soft_cross_entropy
from talon_drafters.training.recipe import Batch, StepCounts, Truth


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


def unrolled_loss(
    head: FeatureHead, output: Tensor, embeddings: Tensor, batch: Batch, truth: Truth, steps: int, decay: float
) -> StepCounts:
    """The loss of `steps` drafting steps from every start of a batch.

    Args:
        head: what is trained.
        output: its output matrix, shape `(draft_vocab, hidden)`.
        embeddings: of the tokens, shape `(batch, tokens, embedding)`.
        batch: the texts.
        truth: what the target says about them.
        steps: how many.
        decay: step `k` counts `decay ** k`.
    """
    tokens = batch.ids.shape[1]
    rows = tokens - 1
    attention = UnrolledAttention(batch.starts, rows)
    states = head.fuse(truth.features[:, :-1])
    positions = torch.arange(rows, device=batch.ids.device).expand(len(batch.ids), -1)
    states, hidden = head(embeddings[:, 1:], states, positions, attention)
    index = batch.starts.clamp(min=0)
    states, hidden = rows_at(states, index), rows_at(hidden, index)
    counter = StepCounter(batch, truth, output, decay)
    for step in range(steps):
        if step:
            attention.step = step
            at = (index + 1 + step).clamp(max=tokens - 1)
            states, hidden = head(rows_at(embeddings, at), states, index + step, attention)
        counter.add(hidden)
    return counter.result()


class StepCounter:
    """Collects drafting steps, which predict the tokens two behind a batch's starts, three behind, ...; scores them.

    Args:
        batch: the texts.
        truth: what the target says about them.
        output: the head's output matrix, shape `(draft_vocab, hidden)`.
        decay: step `k` counts `decay ** k`.
    """

    def __init__(self, batch: Batch, truth: Truth, output: Tensor, decay: float) -> None:
        self._batch, self._truth, self._output, self._decay = batch, truth, output, decay
        self._index = batch.starts.clamp(min=0)
        self._alive = [batch.starts >= 0]
        self._counted: list[Tensor] = []
        self._hidden: list[Tensor] = []
        self._places: list[Tensor] = []

    def add(self, hidden: Tensor) -> None:
        """The next step; `hidden` enters the output matrix, shape `(batch, starts, hidden)`."""
        step, ids = len(self._hidden), self._batch.ids
        rows, tokens = ids.shape
        following = self._index + 2 + step
        alive = self._alive[-1] & (following < self._batch.lengths[:, None])
        counted = alive & self._truth.drafted[ids.gather(1, following.clamp(max=tokens - 1))]
        before = torch.arange(rows, device=ids.device)[:, None] * tokens + (following - 1)
        self._alive.append(alive)
        self._counted.append(counted)
        self._hidden.append(hidden[counted])
        self._places.append(before[counted])

    def result(self) -> StepCounts:
        """The sums of all steps."""
        weights = [
            torch.full((len(hidden),), self._decay**step, device=hidden.device)
            for step, hidden in enumerate(self._hidden)
        ]
        loss, agree = soft_cross_entropy(
            torch.cat(self._hidden),
            self._output,
            self._truth.last.flatten(0, 1),
            torch.cat(self._places),
            self._truth.law,
            torch.cat(weights),
        )
        agreeing = self._alive[0]
        agreed = []
        start = 0
        for counted, hidden in zip(self._counted, self._hidden, strict=True):
            same = torch.zeros_like(counted)
            same[counted] = agree[start : start + len(hidden)]
            start += len(hidden)
            agreeing = agreeing & same
            agreed.append(agreeing.sum())
        rows = torch.stack([alive.sum() for alive in self._alive[1:]]).float()
        scale = sum(self._decay**step for step in range(len(rows))) * max(float(rows[0]), 1.0)
        return StepCounts(loss / scale, rows, torch.stack(agreed).float())


def rows_at(states: Tensor, index: Tensor) -> Tensor:
    """`states[b, index[b, s]]`, shape `(batch, starts, width)`."""
    return states.gather(1, index[:, :, None].expand(-1, -1, states.shape[2]))
