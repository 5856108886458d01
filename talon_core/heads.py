"""Trained heads as data: what programs are given that run them with code of their own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(eq=False)
class HeadWeights:
    """A trained head of EAGLE-3's form (Li et al. 2025, arXiv 2503.01840, section 3): one decoder layer or more.

    Attributes:
        config: a transformers configuration of the decoder layers: widths, heads, norms, RoPE.
        tensors: the weights as the head's files have them, on the CPU, by the authors' names: `fc.weight`,
            `layers.0.self_attn.q_proj.weight`, `norm.weight`, `lm_head.weight` and so on; `embed_tokens.weight` only
            of a head with an embedding of its own.
        states: the target's hidden states that `fc` reads, in order, counted as in `DrafterSpec.features`.
        target_ids: the target's token for each row of `lm_head.weight`, shape `(draft_vocab,)`, int64, ascending; None
            if the rows are the target's tokens.
        norm_before_residual: the first layer's residual is the normed feature.
        norm_output: the next step is fed what has gone through the last norm.
    """

    config: Any
    tensors: "Mapping[str, Tensor]"
    states: tuple[int, ...]
    target_ids: "Tensor | None" = None
    norm_before_residual: bool = False
    norm_output: bool = False


class GivesHead(ABC):
    """What a drafter's options are besides, if other programs can be given its trained head."""

    @abstractmethod
    def head_weights(self, model: Any) -> HeadWeights:
        """The head that these options stand for.

        Args:
            model: the target, a transformers causal LM.

        Raises:
            ValueError: if there is none for this model, or its files do not say what is needed.
        """
