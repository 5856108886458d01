"""What differs between the drafters that can be trained: the head, its loss, its files."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor, nn

from talon_drafters.training.target_states import TargetLaw


@attrs.frozen(eq=False)
class Batch:
    """Texts, and where drafting may start in them. Row `t` of a text is the pair of feature `t` and token `t + 1`.

    Attributes:
        ids: shape `(batch, tokens)`, int64, padded at the end with anything.
        lengths: tokens of each text, shape `(batch,)`, int64.
        starts: rows from which the head drafts, shape `(batch, starts)`, int64; padded with -1.
    """

    ids: Tensor
    lengths: Tensor
    starts: Tensor


@attrs.frozen(eq=False)
class Truth:
    """What the target says about a batch.

    Attributes:
        embeddings: of the tokens, shape `(batch, tokens, target_hidden)`.
        features: what the head asked for, shape `(batch, tokens, features)`.
        last: what enters the target's LM head, shape `(batch, tokens, target_hidden)`.
        law: from `last` to the target's law over the draft vocabulary.
        drafted: whether a token is in the draft vocabulary, shape `(vocab,)`, bool.
    """

    embeddings: Tensor
    features: Tensor
    last: Tensor
    law: TargetLaw
    drafted: Tensor


@attrs.frozen(eq=False)
class StepCounts:
    """How well each drafting step did.

    Attributes:
        loss: the mean loss of a row, a scalar in nats.
        rows: how many rows each step had, shape `(steps,)`, float32.
        agreed: in how many of them head and target had the same best token in this step and in all before it, shape
            `(steps,)`, float32.
    """

    loss: Tensor
    rows: Tensor
    agreed: Tensor


class HeadTraining(ABC):
    """What differs between heads that are trained on the target's own answers, against its laws.

    Attributes:
        options: the recipe.
    """

    options: Any

    @abstractmethod
    def features(self, num_layers: int) -> tuple[int, ...]:
        """The target's states that the head reads, as `DrafterSpec.features`."""

    @abstractmethod
    def make(self, model: Any, target_ids: Tensor) -> nn.Module:
        """A new head for a target.

        Args:
            model: the target, a transformers causal LM.
            target_ids: the draft vocabulary, shape `(draft_vocab,)`, int64, ascending.
        """

    @abstractmethod
    def loss(self, head: nn.Module, batch: Batch, truth: Truth) -> StepCounts:
        """The loss of drafting from every start of a batch."""

    @abstractmethod
    def export(self, head: nn.Module, target_ids: Tensor, entries: dict[str, Any], folder: Path) -> None:
        """Write `config.json` and weights in bfloat16, in the layout that others read.

        Args:
            head: what was trained; it may be changed.
            target_ids: the draft vocabulary, shape `(draft_vocab,)`, int64, ascending.
            entries: what `config.json` is to say besides.
            folder: made if it is not there.
        """
