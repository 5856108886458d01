"""Training Hydra's heads, which share the target's LM head."""

from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from talon_core.runtime.embeddings import output_shape
from talon_drafters.heads.unrolled import at_places
from talon_drafters.hydra.files import save_hydra
from talon_drafters.hydra.network import HydraConfig, HydraHeads
from talon_drafters.hydra.recipe import HydraRecipe
from talon_drafters.training.head_training import Batch, HeadTraining, StepCounts, Truth
from talon_drafters.training.sizes import layer_sizes
from talon_drafters.training.unrolled import StepCounter


@attrs.frozen
class HydraTraining(HeadTraining):
    """Trains Hydra's heads as their recipe says."""

    options: HydraRecipe

    def features(self, num_layers: int) -> tuple[int, ...]:
        return ()

    def make(self, model: Any, target_ids: Tensor) -> HydraHeads:
        _, width = output_shape(model)
        options = layer_sizes(model, self.options.intermediate) if self.options.prefix else None
        return HydraHeads(
            HydraConfig(
                width, len(target_ids), num_heads=self.options.steps, num_layers=self.options.layers, prefix=options
            )
        )

    def loss(self, head: nn.Module, batch: Batch, truth: Truth) -> StepCounts:
        assert isinstance(head, HydraHeads)
        index, last = batch.starts.clamp(min=0), batch.ids.shape[1] - 1
        read = [at_places(head.encode(truth.last.to(next(head.parameters()).dtype)), index)]
        counter = StepCounter(batch, truth, truth.law.weight, self.options.decay, truth.law.bias)
        for step in range(self.options.steps):
            read.append(at_places(truth.embeddings, (index + 1 + step).clamp(max=last)).to(read[0].dtype))
            counter.add(head.hidden(step, torch.cat(read, dim=-1)))
        return counter.result()

    def export(self, head: nn.Module, target_ids: Tensor, entries: dict[str, Any], folder: Path) -> None:
        assert isinstance(head, HydraHeads)
        save_hydra(folder, head.to(torch.bfloat16), target_ids, entries)
