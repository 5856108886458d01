"""What is measured in which order."""

from collections.abc import Sequence
from typing import Any

import attrs

from talon_core.bench.methods import Method
from talon_core.bench.prompts import PromptSet
from talon_core.peer import Peer


@attrs.frozen(order=True)
class Unit:
    """What all methods decode in turn before the next unit begins.

    Attributes:
        set: the prompt set's name.
        prompt: the prompt's index in its set.
        turn: the turn's index in its conversation.
        repetition: how often it was measured before.
    """

    set: str
    prompt: int
    turn: int
    repetition: int

    @property
    def said(self) -> str:
        """It in a sentence."""
        return f"prompt {self.prompt} of the set '{self.set}', turn {self.turn}, repetition {self.repetition}"


@attrs.frozen
class Plan:
    """What a run is to measure.

    Attributes:
        model: as the user gave it.
        methods: plain decoding among them.
        sets: the prompts.
        max_new_tokens: most tokens of an answer.
        temperature: 0 is greedy.
        seed: of the first repetition; each further one adds 1.
        repetitions: how often each prompt is decoded by each method.
        all_turns: decode every turn of a conversation, not the first one only.
        raw: leave the chat template out.
        warmup: how many times each method decodes the first prompt before anything counts.
        rounds: keep every round, with its tree.
    """

    model: str
    methods: tuple[Method, ...]
    sets: tuple[PromptSet, ...]
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    repetitions: int = 1
    all_turns: bool = False
    raw: bool = False
    warmup: int = 3
    rounds: bool = False

    @property
    def peers(self) -> list[tuple[str, Peer]]:
        """The peers among the methods, by name."""
        return [(method.name, method.peer) for method in self.methods if method.peer is not None]

    def units(self) -> list[Unit]:
        """Every unit in order: the first prompt of each set, then the second ones, all of it once per repetition.

        So what is there of an unfinished run is about all sets, and a conversation's turns follow one another.
        """
        most = max(len(each.prompts) for each in self.sets)
        return [
            Unit(each.name, prompt, turn, repetition)
            for repetition in range(self.repetitions)
            for prompt in range(most)
            for each in self.sets
            if prompt < len(each.prompts)
            for turn in range(len(each.prompts[prompt].turns) if self.all_turns else 1)
        ]

    def order(self, number: int, repetition: int) -> list[Method]:
        """The methods in the order of unit `number`: each unit starts with another one, each repetition too."""
        return rotated(self.methods, number + repetition)

    def options(self, repetition: int) -> dict[str, Any]:
        """The options of `Decoder.generate` for one repetition, the same for every method and prompt."""
        options: dict[str, Any] = {"temperature": self.temperature, "max_new_tokens": self.max_new_tokens}
        return {**options, "seed": self.seed + repetition} if self.temperature else options

    def settings(self) -> dict[str, Any]:
        """What the manifest has of it, and what must be the same to go on with a run."""
        made_of = [method.resolved for method in self.methods if method.resolved is not None]
        return {
            "model": self.model,
            "methods": [method.as_dict() for method in self.methods],
            "sets": [each.as_dict() for each in self.sets],
            "attention": made_of[0].parts.attention if made_of else None,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "repetitions": self.repetitions,
            "turns": "all" if self.all_turns else "first",
            "raw": self.raw,
            "warmup": self.warmup,
            "rounds": self.rounds,
        }


def rotated(methods: Sequence[Method], by: int) -> list[Method]:
    """The methods from number `by` on, and then those before it."""
    start = by % len(methods)
    return [*methods[start:], *methods[:start]]
