"""How confident the layers of a model are: the entropy of what their two halves add to the state."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from talon_core.tree import FloatArray

ATTENTION = ("self_attn", "attn", "attention", "self_attention")
"""What models call the attention of a layer."""

MLP = ("mlp", "feed_forward", "block_sparse_moe", "fc2")
"""What they call its other half, or the last part of that."""


class Confidence:
    """Scores the layers of a model while it runs.

    Args:
        layers: its decoder layers, at least three.
        model: for the message.

    Raises:
        ValueError: if there are fewer layers, or the two halves of one are not found.
    """

    def __init__(self, layers: nn.ModuleList, model: Any) -> None:
        if len(layers) < 3:
            raise ValueError(
                f"{type(model).__name__} has {len(layers)} layers; drafter 'conflayers' leaves out some between the "
                "first and the last, so it needs at least 3"
            )
        self._halves = [(_named(layer, ATTENTION, model), _named(layer, MLP, model)) for layer in [*layers][1:-1]]

    @contextmanager
    def measured(self) -> Iterator[FloatArray]:
        """While entered, one pass of the model is scored.

        Yields:
            The scores of all layers but the first and the last, shape `(layers - 2,)`, float64; 0 to 2. They are
            fetched together when it is left, and 0 before.
        """
        scores: FloatArray = np.zeros(len(self._halves))
        found: dict[tuple[int, int], Tensor] = {}
        with ExitStack() as stack:
            for place, halves in enumerate(self._halves):
                for number, half in enumerate(halves):
                    noted = partial(_note, found, (place, number))
                    stack.callback(half.register_forward_hook(noted).remove)
            yield scores
        device = next(iter(found.values())).device  # layers may be on several
        fetched = torch.stack([one.to(device) for one in found.values()]).cpu().numpy()
        np.add.at(scores, [place for place, _ in found], fetched)


def _note(
    found: dict[tuple[int, int], Tensor], half: tuple[int, int], _module: nn.Module, _args: Any, out: Any
) -> None:
    found[half] = confidence(out[0] if isinstance(out, tuple) else out)


def confidence(states: Tensor) -> Tensor:
    """How far states are from being even, from 0 to 1: the mean over tokens of 1 - H(softmax(h)) / ln d.

    Args:
        states: shape `(.., d)`.

    Returns:
        A float64 without dimensions, on their device.
    """
    logp = torch.log_softmax(states.double(), dim=-1)
    return 1.0 + (logp.exp() * logp).sum(-1).mean() / math.log(states.shape[-1])


def _named(layer: nn.Module, names: tuple[str, ...], model: Any) -> nn.Module:
    for name in names:
        part = getattr(layer, name, None)
        if isinstance(part, nn.Module):
            return part
    raise ValueError(
        f"{type(model).__name__} has layers without a part called {', '.join(names[:-1])} or {names[-1]}, so drafter "
        "'conflayers' cannot tell how confident they are; take draft-model:skip=LAYERS"
    )
