"""The loss of a head against the target's law, without a table of tokens times vocabulary."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from talon_drafters.training.target_states import TargetLaw

ROWS = 2048
"""Rows whose slopes exist at the same time, in the width they are multiplied in."""

PIECE = 256
"""Rows whose scores exist at the same time, in float32; few enough to stay in a CPU's cache."""


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        truth: Tensor,
        place: Tensor,
        law: TargetLaw,
        row_weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        order = torch.argsort(place)  # rows that speak of the same place stand together and share its law
        place, row_weight = place[order], row_weight[order]
        low, low_weight = hidden.detach()[order].to(dtype), weight.detach().to(dtype)
        low_bias = None if bias is None else bias.detach().to(dtype)
        grad_hidden = torch.empty_like(low)
        learns = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if learns else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        agree = torch.empty(len(low), dtype=torch.bool, device=hidden.device)
        slopes = torch.empty((min(ROWS, len(low)), len(weight)), dtype=dtype, device=hidden.device)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(low), ROWS):
                rows = slice(start, start + ROWS)
                slope = slopes[: len(low[rows])]
                for part in range(start, start + len(slope), PIECE):
                    few = slice(part, min(part + PIECE, start + len(slope)))
                    scores = nn.functional.linear(low[few], low_weight, low_bias)
                    nats, agree[few] = _slopes(scores, truth, place[few], law, row_weight[few], slope[part - start :])
                    loss += nats
                torch.mm(slope, low_weight, out=grad_hidden[rows])
                if grad_weight is not None:
                    grad_weight += slope.T @ low[rows]
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
        return (grad_hidden * by).to(hidden_type), of_weight, None, None, None, None, None


def _slopes(
    scores: Tensor, truth: Tensor, place: Tensor, law: TargetLaw, row_weight: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of a few rows and where they agree with the target; the slopes of their scores go to `out`.

    Args:
        scores: the head's, shape `(rows, draft_vocab)`; `place` ascends, everything else is as in `soft_cross_entropy`.
    """
    places, which = torch.unique_consecutive(place, return_inverse=True)
    wanted = law.scores(truth[places])
    best = wanted.argmax(-1)
    wanted = torch.softmax(wanted, dim=-1)
    highest, chosen = scores.max(-1)
    drafted = torch.softmax(scores, dim=-1, dtype=torch.float32)
    total = highest.float() - drafted.gather(1, chosen[:, None])[:, 0].log()  # log of the sum of exponentials
    repeated = wanted[which] if len(places) < len(which) else wanted
    expected = (scores.float() * repeated).sum(-1)
    out[: len(scores)] = drafted.sub_(repeated).mul_(row_weight[:, None])
    return ((total - expected) * row_weight).sum(), chosen == best[which]


def soft_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    truth: Tensor,
    place: Tensor,
    law: TargetLaw,
    row_weight: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of a head's laws against the target's, both over the draft vocabulary.

    The gradients are computed along with the loss, so that scores exist for `PIECE` rows at a time and their slopes for
    `ROWS`.

    Args:
        hidden: what enters the head's output matrix, shape `(rows, hidden)`.
        weight: that matrix, shape `(draft_vocab, hidden)`.
        truth: the target's last states, shape `(places, target_hidden)`.
        place: which of them each row speaks of, shape `(rows,)`, int64.
        law: the target's law over the draft vocabulary.
        row_weight: how much each row counts, shape `(rows,)`, float32.
        bias: what is added to the head's scores, shape `(draft_vocab,)`; it is the target's, and not learnt.

    Returns:
        The weighted sum over rows, a float32 scalar in nats, and where both laws have the same best token, shape
        `(rows,)`, bool.
    """
    apply: Any = _SoftCrossEntropy.apply
    loss, agree = apply(hidden, weight, bias, truth, place, law, row_weight)
    return loss, agree
