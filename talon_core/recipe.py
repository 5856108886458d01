"""The interface of training recipes: how a drafter is made for a target."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
from attrs.validators import ge, gt, le, lt

from talon_core.basics.numerals import fault_of_temperature
from talon_core.basics.option_checks import number, whole_number, yes_or_no


def _is_temperature(_: Any, attribute: "attrs.Attribute[float]", value: float) -> None:
    fault = fault_of_temperature(value)
    if fault is not None:
        raise ValueError(f"'{attribute.name}' is {value}; {fault}")


@attrs.frozen
class TrainingJob:
    """What a drafter is trained on, and how long. Everything is kept in one folder, and a job can be gone on with.

    Attributes:
        target: the target's name, as the drafter's files shall say it.
        out: the folder. Several recipes may share it: they share the target's answers.
        prompts: files of prompts; JSON lines with `prompt` (and, it may be, `answer`) or `turns`, or a prompt a line.
        self_written: how many prompts the target is to write itself, by being given no more than a user's first words.
        summaries: how many long texts the target is to summarize, each made of three of its own answers.
        library: use the signatures and docstrings of Python's standard library as code to be completed.
        given_answers: learn from the answers that the files have; without it, the target answers all prompts.
        answer_tokens: most tokens of an answer.
        temperature: of every second answer; the others are greedy. 0 makes all greedy.
        batch_size: answers that are written together.
        held_out: share of the texts that acceptance is reported on.
        keep_states: keep the target's states on disk, about eight bytes for each of a text's tokens and each unit of
            the target's width; every pass over the texts but the first is then free of the target.
        epochs: passes over the texts.
        batch_tokens: tokens of a training batch.
        learning_rate: the highest.
        max_length: tokens of a text that are used.
        save_every: training steps between checkpoints, and between reports on held-out texts.
        seed: of everything that is drawn.
        start: a folder that an earlier training by the same recipe left, whose weights are begun with.
        dtype: the target's type as it was asked for; "auto" for what suits the machine.
    """

    target: str
    out: Path
    prompts: tuple[Path, ...] = ()
    self_written: int = attrs.field(default=0, validator=[whole_number, ge(0)])
    summaries: int = attrs.field(default=0, validator=[whole_number, ge(0)])
    library: bool = attrs.field(default=False, validator=yes_or_no)
    given_answers: bool = attrs.field(default=False, validator=yes_or_no)
    answer_tokens: int = attrs.field(default=256, validator=[whole_number, ge(1)])
    temperature: float = attrs.field(default=0.7, validator=[number, _is_temperature, le(100)])
    batch_size: int = attrs.field(default=64, validator=[whole_number, ge(1)])
    held_out: float = attrs.field(default=0.02, validator=[number, ge(0), le(0.5)])
    keep_states: bool = attrs.field(default=False, validator=yes_or_no)
    epochs: float = attrs.field(default=3.0, validator=[number, gt(0), le(100_000)])
    batch_tokens: int = attrs.field(default=2048, validator=[whole_number, ge(16)])
    learning_rate: float = attrs.field(default=2e-3, validator=[number, gt(0), le(1)])
    max_length: int = attrs.field(default=768, validator=[whole_number, ge(8)])
    save_every: int = attrs.field(default=200, validator=[whole_number, ge(1)])
    seed: int = attrs.field(default=0, validator=[whole_number, ge(0), lt(2**32)])  # NumPy's seeds have 32 bits
    start: Path | None = None
    dtype: str = "auto"


class Recipe(ABC):
    """How one kind of drafter is trained, as an `attrs.frozen` class whose fields are its options."""

    name: ClassVar[str]
    """What the recipe is called: by the drafter that it makes."""

    @abstractmethod
    def train(self, model: Any, tokenizer: Any, job: TrainingJob) -> Mapping[str, Any]:
        """Make a drafter.

        Args:
            model: the target, a transformers causal LM; it is not changed.
            tokenizer: the target's.
            job: what to train on.

        Returns:
            What `talon train --json` prints: `path`, the drafter's folder, and figures.

        Raises:
            ValueError: if there is nothing to train on, or the folder belongs to another job.
        """
