"""A smaller causal LM as drafter, or the target itself with layers left out."""

import re
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import attrs

from talon_core.basics.option_checks import whole_numbers, yes_or_no
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target

MOST = 10_000
"""Layers of a model, at most."""


def _layers(given: Any) -> Any:
    """`(3, 4, 5, 9)` from `"3-5+9"` or `"3;4;5;9"`; of whatever else is no list it is for a validator to refuse it."""
    if not isinstance(given, str):
        found = tuple(given) if isinstance(given, Iterable) else given
        numbers = isinstance(found, tuple) and all(isinstance(each, Integral) for each in found)
        return tuple(sorted({*found})) if numbers else found
    layers: set[int] = set()
    for part in filter(None, re.split("[+;]", given)):
        first, dash, last = part.partition("-")
        try:
            several = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            several = range(0)
        if not several or several[-1] >= MOST:  # numbers that are none, or too large, or a range that runs backwards
            raise ValueError(f"skip is '{given}'; it must be layers such as 4-9+12, counted from 0")
        layers.update(several)
    return tuple(sorted(layers))


@attrs.frozen
class DraftModel(DrafterSpec):
    """Drafts with a causal LM of the same tokenizer and vocabulary; its chain case is classic speculative sampling.

    The model runs over the growing tree with its own cache and tree attention, one forward pass per layer, and its laws
    are the untempered softmax of its logits (speculative decoding: Leviathan et al., arXiv 2211.17192, section 2).
    Where there is no smaller sibling, `skip` makes one of the target by leaving layers out, which needs no weights
    (self-speculation: Zhang et al., arXiv 2309.08168, section 3).

    Attributes:
        model: a folder, GGUF file, embedded model or Hugging Face id; None with `skip`.
        skip: the target's layers that are left out, counted from 0: `"4-9+12"` in a spec, or a sequence of numbers.
        trust_remote_code: run code that the model's folder brings.
    """

    name = "draft-model"
    purpose = "models"
    paper = "arXiv 2211.17192"
    takes_paths = True
    catches_up = True
    model: str | None = None
    skip: tuple[int, ...] = attrs.field(default=(), converter=_layers, validator=whole_numbers)
    trust_remote_code: bool = attrs.field(default=False, validator=yes_or_no)

    def __attrs_post_init__(self) -> None:
        if (self.model is None) == (not self.skip):
            raise ValueError(
                "needs either model=FOLDER_OR_ID or skip=LAYERS (such as skip=8-19), "
                f"got model={self.model} and skip={self.skip}"
            )

    def open(self, target: Target) -> Drafter:
        from talon_drafters.draft_model.drafter import open_draft_model

        return open_draft_model(self, target)
