"""Fitting a head to examples: the network whose predictions make what was seen likeliest."""

import attrs
import numpy as np

from talon_core.tree import FloatArray
from talon_strategies.acceptance_head import AcceptanceHead
from talon_strategies.fitting.examples import Examples

STEPS = 150
"""Steps of L-BFGS, at most."""

DECAY = 1e-4
"""What the squares of all weights count for beside the mean loss of an example."""

LEAST = 1e-6
"""Probabilities nearer to 0 or 1 lose no more than this one."""


def loss(predicted: FloatArray, accepted: FloatArray) -> float:
    """The mean cross-entropy of shares under predictions, in nats; of shares that are 0 or 1 the mean log-loss."""
    prob = np.clip(predicted, LEAST, 1 - LEAST)
    return float(-(accepted * np.log(prob) + (1 - accepted) * np.log(1 - prob)).mean())


def fitted(examples: Examples, hidden: int, seed: int = 0) -> AcceptanceHead:
    """The head with the least cross-entropy on examples, by L-BFGS over all of them at once; equal for equal arguments.

    Args:
        examples: at least one.
        hidden: neurons of the network, at least 1.
        seed: of what it begins from.
    """
    import torch
    from torch import nn

    mean, scale = examples.features.mean(axis=0), examples.features.std(axis=0)
    tells = scale > 1e-9  # what is always the same tells nothing
    scale = np.where(tells, scale, 1.0)
    seen = torch.from_numpy((examples.features - mean) / scale)
    accepted = torch.from_numpy(examples.accepted)
    generator = torch.Generator().manual_seed(seed)
    first, last = nn.Linear(seen.shape[1], hidden).double(), nn.Linear(hidden, 1).double()
    with torch.no_grad():
        for layer in (first, last):
            spread = layer.in_features**-0.5
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64) * spread)
            layer.bias.zero_()
    parameters = [*first.parameters(), *last.parameters()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        odds = last(torch.relu(first(seen)))[:, 0]
        squares = sum((each.square().sum() for each in (first.weight, last.weight)), torch.zeros(()))
        value: torch.Tensor = nn.functional.binary_cross_entropy_with_logits(odds, accepted) + DECAY * squares
        value.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        return value

    optimizer.step(step)  # type: ignore[no-untyped-call]  # likewise
    weight = first.weight.detach().numpy() * tells / scale
    return AcceptanceHead(
        source="",
        hidden_weight=weight,
        hidden_bias=first.bias.detach().numpy() - weight @ mean,
        output_weight=last.weight.detach().numpy()[0],
        output_bias=float(last.bias.detach()),
    )


@attrs.frozen
class Losses:
    """Mean cross-entropies on examples that were held out, in nats.

    Attributes:
        head: of the head's predictions.
        drafter: of what the drafter's own probabilities promise.
        constant: of the mean of the examples that the head was fitted to.
    """

    head: float
    drafter: float
    constant: float

    @classmethod
    def of(cls, head: AcceptanceHead, fitted_to: Examples, held_out: Examples) -> "Losses":
        """On some examples."""
        seen = held_out.accepted
        constant = np.full(len(seen), fitted_to.accepted.mean())
        return cls(*(loss(one, seen) for one in (head.accepted(held_out.features), held_out.believed, constant)))
