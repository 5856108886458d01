"""The recipe `hydra`, its options only: what runs it is imported when it is needed."""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.recipe import Recipe, TrainingJob


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
    draft_vocab: int = attrs.field(default=8192, validator=[whole_number, ge(1)])
    steps: int = attrs.field(default=4, validator=[whole_number, ge(1)])
    layers: int = attrs.field(default=1, validator=[whole_number, ge(1)])
    decay: float = attrs.field(default=0.8, validator=[number, gt(0), le(1)])
    prefix: bool = attrs.field(default=False, validator=yes_or_no)
    intermediate: int = attrs.field(default=0, validator=[whole_number, ge(0)])

    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        from talon_drafters.hydra.training import HydraTraining
        from talon_drafters.training.pipeline import run_job

        return run_job(HydraTraining(self), model, tokenizer, job)
