"""The only source of randomness for policies and acceptance rules."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from talon_core.tree import FloatArray

T = TypeVar("T")


class Choices(ABC):
    """Makes random choices. A policy or rule that draws through it can be enumerated exactly, outcome by outcome."""

    @abstractmethod
    def pick(self, law: FloatArray) -> int:
        """Draw an index from `law`, shape `(outcomes,)`, float64, non-negative and summing to 1."""

    def coin(self, prob: float) -> bool:
        """True with probability `prob`, which is in [0, 1]."""
        return self.pick(np.array([1.0 - prob, prob])) == 1


class SeededChoices(Choices):
    """Draws by inversion from a seeded PCG64 generator; the same seed gives the same draws."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = np.random.default_rng(seed)

    def pick(self, law: FloatArray) -> int:
        cumulated = np.cumsum(law)
        threshold = self._generator.random() * cumulated[-1]
        return int(np.searchsorted(cumulated, threshold, side="right"))


class ScriptedChoices(Choices):
    """Replays a script of outcomes and, past its end, takes the first possible one; `enumerate_outcomes` uses it."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.laws: list[FloatArray] = []
        self.taken: list[int] = []

    def pick(self, law: FloatArray) -> int:
        law = np.asarray(law, dtype=np.float64)
        step = len(self.taken)
        outcome = self.script[step] if step < len(self.script) else int(np.flatnonzero(law > 0)[0])
        self.laws.append(law)
        self.taken.append(outcome)
        return outcome

    @property
    def prob(self) -> float:
        """Probability of the outcomes taken so far, in [0, 1]."""
        return float(np.prod([law[outcome] for law, outcome in zip(self.laws, self.taken, strict=True)]))


def enumerate_outcomes(experiment: Callable[[Choices], T]) -> Iterator[tuple[float, T]]:
    """Run `experiment` once for every possible sequence of random choices.

    Args:
        experiment: draws only through the `Choices` it is given and does the same whenever they are the same.

    Yields:
        Each outcome's probability and the experiment's result. The probabilities sum to 1.
    """
    script: list[int] | None = []
    while script is not None:
        choices = ScriptedChoices(script)
        result = experiment(choices)
        yield choices.prob, result
        script = _next_script(choices)


def _next_script(choices: ScriptedChoices) -> list[int] | None:
    for step in reversed(range(len(choices.taken))):
        later = np.flatnonzero(choices.laws[step] > 0)
        later = later[later > choices.taken[step]]
        if len(later):
            return [*choices.taken[:step], int(later[0])]
    return None
