"""The loss of unrolled drafting: several drafting steps in a row, each fed with what the one before made."""

import torch
from torch import Tensor

from talon_drafters.heads.layers import FeatureHead
from talon_drafters.heads.unrolled import unrolled
from talon_drafters.training.head_training import Batch, StepCounts, Truth
from talon_drafters.training.losses import soft_cross_entropy


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
    counter = StepCounter(batch, truth, output, decay)
    features = truth.features[:, :-1].to(head.dtype)
    for hidden in unrolled(head, embeddings.to(head.dtype), features, batch.starts, steps):
        counter.add(hidden)
    return counter.result()


class StepCounter:
    """Collects drafting steps, which predict the tokens two behind a batch's starts, three behind, ...; scores them.

    Args:
        batch: the texts.
        truth: what the target says about them.
        output: the head's output matrix, shape `(draft_vocab, hidden)`.
        decay: step `k` counts `decay ** k`.
        bias: what the head's scores have besides, where its output matrix is the target's, shape `(draft_vocab,)`.
    """

    def __init__(self, batch: Batch, truth: Truth, output: Tensor, decay: float, bias: Tensor | None = None) -> None:
        self._batch, self._truth, self._output, self._decay = batch, truth, output, decay
        self._bias = bias
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
            self._bias,
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
