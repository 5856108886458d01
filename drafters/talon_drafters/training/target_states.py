"""What a frozen target says about a batch of texts: the states a drafter reads, and the last one, which is its law."""

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from talon_core.runtime.embeddings import output_rows
from talon_core.runtime.states import captured_states


@attrs.frozen(eq=False)
class TargetLaw:
    """The target's LM head, cut down to the draft vocabulary.

    Attributes:
        weight: its rows, shape `(draft_vocab, target_hidden)`.
        bias: shape `(draft_vocab,)`, or None.
        softcap: scores become `softcap * tanh(score / softcap)`; None if they do not.
        scale: what the scores are multiplied by, before the cap.
    """

    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, model: Any, tokens: Tensor) -> "TargetLaw":
        """The law of a causal LM over these tokens, shape `(draft_vocab,)`, int64."""
        head = model.get_output_embeddings()
        config = model.config.get_text_config()
        bias = getattr(head, "bias", None)
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(
            getattr(config, "logits_scaling", None) or 1.0
        )
        return cls(
            weight=output_rows(model, tokens).contiguous(),
            bias=bias.detach()[tokens.to(bias.device)] if bias is not None else None,
            softcap=getattr(config, "final_logit_softcapping", None),
            scale=scale,
        )

    def scores(self, states: Tensor) -> Tensor:
        """Scores of the tokens, shape `(rows, draft_vocab)`, float32, from last states `(rows, target_hidden)`."""
        scores = torch.nn.functional.linear(states.to(self.weight.dtype), self.weight, self.bias).float()
        if self.scale != 1.0:
            scores = scores * self.scale
        return self.softcap * torch.tanh(scores / self.softcap) if self.softcap is not None else scores


class TargetStates:
    """Runs a frozen causal LM over padded texts and keeps the states that are asked for.

    Args:
        model: the target.
        features: as `DrafterSpec.features` gives them.
    """

    def __init__(self, model: Any, features: Sequence[int]) -> None:
        self.model = model
        self.features = tuple(features)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Run texts, shape `(batch, tokens)`, int64, padded at the end.

        Returns:
            The features, concatenated, shape `(batch, tokens, features)`, and the last states, after the final norm,
            shape `(batch, tokens, target_hidden)`.
        """
        with captured_states(self.model, self.features) as captured:
            # a text sees nothing of the padding behind it, so no mask is needed
            last = self.model.get_decoder()(input_ids=ids.to(self.model.device), use_cache=False).last_hidden_state
        kept = [captured[wanted] for wanted in self.features]
        return (torch.cat(kept, dim=-1) if kept else last[..., :0]), last
