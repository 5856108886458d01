"""The recipe `eagle3`, its options only: what runs it is imported when it is needed."""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
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
    draft_vocab: int = attrs.field(default=8192, validator=[whole_number, ge(1)])
    steps: int = attrs.field(default=4, validator=[whole_number, ge(1)])
    decay: float = attrs.field(default=0.8, validator=[number, gt(0), le(1)])
    intermediate: int = attrs.field(default=0, validator=[whole_number, ge(0)])

    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        from talon_drafters.eagle3.training import Eagle3Training
        from talon_drafters.training.pipeline import run_job

        return run_job(Eagle3Training(self), model, tokenizer, job)
