"""The recipe `medusa`, its options only: what runs it is imported when it is needed."""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.recipe import Recipe, TrainingJob


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
    draft_vocab: int = attrs.field(default=8192, validator=[whole_number, ge(1)])
    steps: int = attrs.field(default=4, validator=[whole_number, ge(1)])
    layers: int = attrs.field(default=1, validator=[whole_number, ge(1)])
    decay: float = attrs.field(default=0.8, validator=[number, gt(0), le(1)])

    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        from talon_drafters.medusa.training import MedusaTraining
        from talon_drafters.training.pipeline import run_job

        return run_job(MedusaTraining(self), model, tokenizer, job)
