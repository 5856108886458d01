"""The training recipes, their options only: what runs them is imported when it is needed."""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt, le

from talon_core.recipe import Recipe, TrainingJob


@attrs.frozen
class Eagle3Recipe(Recipe):
    """One decoder layer with an LM head of its own, trained with the training-time test (EAGLE-3, section 3.2).

    Attributes:
        draft_vocab: tokens it can draft, the most frequent ones of the answers.
        steps: drafting steps in the loss.
        decay: how much a step counts, relative to the one before it.
        intermediate: width of its MLP; 0 takes the target's.
    """

    name = "eagle3"
    draft_vocab: int = attrs.field(default=8192, validator=ge(1))
    steps: int = attrs.field(default=4, validator=ge(1))
    decay: float = attrs.field(default=0.8, validator=[gt(0), le(1)])
    intermediate: int = attrs.field(default=0, validator=ge(0))

    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        from talon_drafters.training.eagle3 import Eagle3Training
        from talon_drafters.training.pipeline import run_job

        return run_job(Eagle3Training(self), model, tokenizer, job)


@attrs.frozen
class MedusaRecipe(Recipe):
    """Residual blocks on the target's last state, one row of them for each token ahead (Medusa, section 2.2.1).

    Attributes:
        draft_vocab: tokens they can draft; fewer rows of the target's LM head to compute.
        steps: heads, that is tokens ahead.
        layers: residual blocks of each.
        decay: how much a head counts, relative to the one before it.
    """

    name = "medusa"
    draft_vocab: int = attrs.field(default=8192, validator=ge(1))
    steps: int = attrs.field(default=4, validator=ge(1))
    layers: int = attrs.field(default=1, validator=ge(1))
    decay: float = attrs.field(default=0.8, validator=[gt(0), le(1)])

    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        from talon_drafters.training.heads import MedusaTraining
        from talon_drafters.training.pipeline import run_job

        return run_job(MedusaTraining(self), model, tokenizer, job)


@attrs.frozen
class HydraRecipe(Recipe):
    """As Medusa's, but each head also reads the tokens drafted before it (Hydra, section 3).

    Attributes:
        draft_vocab: as for Medusa.
        steps: heads, that is tokens ahead.
        layers: residual blocks of each.
        decay: how much a head counts, relative to the one before it.
        prefix: run a decoder layer over the states first (Hydra++, section 4).
        intermediate: width of that layer's MLP; 0 takes the target's.
    """

    name = "hydra"
    draft_vocab: int = attrs.field(default=8192, validator=ge(1))
    steps: int = attrs.field(default=4, validator=ge(1))
    layers: int = attrs.field(default=1, validator=ge(1))
    decay: float = attrs.field(default=0.8, validator=[gt(0), le(1)])
    prefix: bool = False
    intermediate: int = attrs.field(default=0, validator=ge(0))

    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        from talon_drafters.training.heads import HydraTraining
        from talon_drafters.training.pipeline import run_job

        return run_job(HydraTraining(self), model, tokenizer, job)
