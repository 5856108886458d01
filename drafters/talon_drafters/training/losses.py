"""The loss of a head against the target's law, without a table of tokens times vocabulary."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from talon_drafters.training.target_states import TargetLaw

CHUNK = 512
"""Places whose scores exist at the same time."""


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, truth: Tensor, place: Tensor, law: TargetLaw, row_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        order = torch.argsort(place)
        low, low_weight = hidden.detach()[order].to(dtype), weight.detach().to(dtype)
        row_weight = row_weight[order]
        grad_hidden = torch.empty_like(low)
        learns = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if learns else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        agree = torch.empty(len(low), dtype=torch.bool, device=hidden.device)
        used, counts = torch.unique_consecutive(place[order], return_counts=True)
        ends = [0, *torch.cumsum(counts, 0).tolist()]
        with torch.autocast(device, enabled=False):
            for start in range(0, len(used), CHUNK):
                places = used[start : start + CHUNK]
                rows = slice(ends[start], ends[start + len(places)])
                wanted = law.scores(truth[places])  # (chunk, draft_vocab)
                best = wanted.argmax(-1)
                wanted = torch.softmax(wanted, dim=-1)
                which = torch.repeat_interleave(counts[start : start + CHUNK])
                scores = (low[rows] @ low_weight.T).float()  # (rows of the chunk, draft_vocab)
                agree[rows] = scores.argmax(-1) == best[which]
                total = scores.logsumexp(-1)
                expected = torch.empty_like(total)
                for part in range(0, len(total), CHUNK):
                    few = slice(part, part + CHUNK)
                    law_of = wanted[which[few]]
                    expected[few] = (law_of * scores[few]).sum(-1)
                    scores[few] = (scores[few] - total[few, None]).exp_().sub_(law_of)
                loss += ((total - expected) * row_weight[rows]).sum()
                slope = scores.mul_(row_weight[rows, None]).to(dtype)
                grad_hidden[rows] = slope @ low_weight
                if grad_weight is not None:
                    grad_weight += (slope.T @ low[rows]).float()
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        ctx.save_for_backward(grad_hidden[back], grad_weight)
        ctx.types = (hidden.dtype, weight.dtype)
        agree = agree[back]
        ctx.mark_non_differentiable(agree)
        return loss, agree

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides the name of ctx
        ctx: Any, *slopes: Tensor
    ) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden_type, weight_type = ctx.types
        by = slopes[0]
        of_weight = (grad_weight * by).to(weight_type) if grad_weight is not None else None
        return (grad_hidden * by).to(hidden_type), of_weight, None, None, None, None


def soft_cross_entropy(
    hidden: Tensor, weight: Tensor, truth: Tensor, place: Tensor, law: TargetLaw, row_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of a head's laws against the target's, both over the draft vocabulary.

    The gradients are computed along with the loss, chunk by chunk, so that scores exist for the rows of `CHUNK` places
    at a time, and the target's law once for all rows that speak of the same place.

    Args:
        hidden: what enters the head's output matrix, shape `(rows, hidden)`.
        weight: that matrix, shape `(draft_vocab, hidden)`.
        truth: the target's last states, shape `(places, target_hidden)`.
        place: which of them each row speaks of, shape `(rows,)`, int64.
        law: the target's law over the draft vocabulary.
        row_weight: how much each row counts, shape `(rows,)`, float32.

    Returns:
        The weighted sum over rows, a float32 scalar in nats, and where both laws have the same best token, shape
        `(rows,)`, bool.
    """
    apply: Any = _SoftCrossEntropy.apply
    loss, agree = apply(hidden, weight, truth, place, law, row_weight)
    return loss, agree
