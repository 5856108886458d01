"""Training an EAGLE-3 head, and writing it in the authors' own layout."""

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from talon_core.runtime.embeddings import output_rows, vocabulary_size
from talon_drafters.eagle3.files import save_eagle3
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_drafters.eagle3.options import default_states
from talon_drafters.eagle3.recipe import Eagle3Recipe
from talon_drafters.training.head_training import Batch, HeadTraining, StepCounts, Truth
from talon_drafters.training.sizes import layer_sizes
from talon_drafters.training.target_states import TargetStates
from talon_drafters.training.unrolled import unrolled_loss


@attrs.frozen
class Eagle3Training(HeadTraining):
    """Trains an EAGLE-3 head as its recipe says."""

    options: Eagle3Recipe

    def features(self, num_layers: int) -> tuple[int, ...]:
        return default_states(num_layers)

    def make(self, model: Any, target_ids: Tensor) -> Eagle3Head:
        text = model.config.get_text_config()
        layer = LlamaConfig(
            **layer_sizes(model, self.options.intermediate),
            vocab_size=vocabulary_size(model),
            num_hidden_layers=1,
            rms_norm_eps=getattr(text, "rms_norm_eps", 1e-6),
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
        head = Eagle3Head(Eagle3Config(layer, text.hidden_size, len(target_ids)), target_ids)
        self._start_from(head, model, target_ids)
        return head

    @torch.no_grad()
    def _start_from(self, head: Eagle3Head, model: Any, target_ids: Tensor) -> None:
        """Begin with the target's own last norm and LM head, and with fused states about as large as a norm's output.

        The target's states grow from layer to layer; unscaled, what the new layer adds would drown in them.
        """
        head.lm_head.weight.copy_(output_rows(model, target_ids))
        own, norm = head.norm, getattr(model.get_decoder(), "norm", None)
        weight = getattr(norm, "weight", None)
        if isinstance(weight, Tensor) and isinstance(own, LlamaRMSNorm) and weight.shape == own.weight.shape:
            own.weight.copy_(weight.float() + _offset(norm, weight))
        for module in head.layers.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(head.fc.weight, std=head.fc.in_features**-0.5)
        states = self.features(model.config.get_text_config().num_hidden_layers)
        features, _ = TargetStates(model, states)(target_ids[None, :64])
        for at, part in enumerate(features[0].float().chunk(len(states), dim=-1)):
            size = part.square().mean(-1).sqrt().median()
            head.fc.weight[:, at * part.shape[-1] : (at + 1) * part.shape[-1]] /= size.to(head.fc.weight.device)

    def loss(self, head: nn.Module, batch: Batch, truth: Truth) -> StepCounts:
        assert isinstance(head, Eagle3Head)
        return unrolled_loss(
            head, head.lm_head.weight, truth.embeddings, batch, truth, self.options.steps, self.options.decay
        )

    def export(self, head: nn.Module, target_ids: Tensor, entries: dict[str, Any], folder: Path) -> None:
        assert isinstance(head, Eagle3Head)
        save_eagle3(folder, head, target_ids, entries)


def _offset(norm: Any, weight: Tensor) -> float:
    """What a norm adds to its weight before it multiplies by it: Gemma's add 1, most others 0."""
    x = torch.ones_like(weight)
    x[1::2] = -1  # of mean 0 and mean square 1, so that no kind of norm changes it but by its factor and its bias
    factor = (norm(x[None]) - norm(-x[None]))[0] / 2 * x
    return 1.0 if (factor - weight).float().median() > 0.5 else 0.0
