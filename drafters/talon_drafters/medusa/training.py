"""Training Medusa's heads, which share the target's LM head."""

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from talon_core.runtime.embeddings import output_shape
from talon_drafters.heads.unrolled import at_places
from talon_drafters.medusa.files import save_medusa
from talon_drafters.medusa.network import MedusaConfig, MedusaHeads
from talon_drafters.medusa.recipe import MedusaRecipe
from talon_drafters.training.head_training import Batch, HeadTraining, StepCounts, Truth
from talon_drafters.training.unrolled import StepCounter


@attrs.frozen
class MedusaTraining(HeadTraining):
    """Trains Medusa's heads as their recipe says."""

    options: MedusaRecipe

    def features(self, num_layers: int) -> tuple[int, ...]:
        return ()  # the last state, which comes anyway

    def make(self, model: Any, target_ids: Tensor) -> MedusaHeads:
        _, width = output_shape(model)
        return MedusaHeads(
            MedusaConfig(width, len(target_ids), num_heads=self.options.steps, num_layers=self.options.layers)
        )

    def loss(self, head: nn.Module, batch: Batch, truth: Truth) -> StepCounts:
        assert isinstance(head, MedusaHeads)
        states = at_places(truth.last, batch.starts.clamp(min=0)).to(next(head.parameters()).dtype)
        counter = StepCounter(batch, truth, truth.law.weight, self.options.decay, truth.law.bias)
        for hidden in head.hidden(states):
            counter.add(hidden)
        return counter.result()

    def export(self, head: nn.Module, target_ids: Tensor, entries: dict[str, Any], folder: Path) -> None:
        assert isinstance(head, MedusaHeads)
        save_medusa(folder, head.to(torch.bfloat16), target_ids, entries)
