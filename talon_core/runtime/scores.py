"""What is read off a drafter's scores."""

import torch
from torch import Tensor


def best_numbers(scores: Tensor, width: int) -> Tensor:
    """The best tokens of each row and then their natural log-probabilities, shape `(rows, 2 * width)`, float32.

    A token's number is as exact in float32 as any vocabulary is small: below 2^24.

    Args:
        scores: shape `(rows, draft vocab)`, float32.
        width: how many, best first; all if there are fewer.
    """
    best = scores.topk(min(width, scores.shape[-1]), dim=-1)
    top = best.values[..., :1]
    # relative to the best, so that large scores lose no digits
    logp = (best.values - top) - (scores - top).exp().sum(-1, keepdim=True).log()
    return torch.cat([best.indices.float(), logp], dim=-1)
