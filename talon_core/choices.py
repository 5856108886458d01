"""The only source of randomness for policies and acceptance rules."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from talon_core.drawn import LAW_SLACK, fault
from talon_core.tree import FloatArray, IntArray

T = TypeVar("T")

BLOCK = 256
"""Outcomes that are added up at once."""

PLACE = 64
"""Two to the power of this is how many numbers lie between those of two places."""


class Choices(ABC):
    """Makes random choices. A policy or rule that draws through it can be enumerated exactly, outcome by outcome."""

    @abstractmethod
    def pick(self, law: FloatArray) -> int:
        """Draw an index from `law`, shape `(outcomes,)`, float64, non-negative and summing to 1.

        Raises:
            ValueError: if nothing can come out.
        """

    def coin(self, prob: float) -> bool:
        """True with probability `prob`, which is in [0, 1]."""
        return self.pick(np.array([1.0 - prob, prob])) == 1

    def apart(self, number: int) -> "Choices":
        """Choices for somebody who must not foresee these: whoever copies them learns nothing of these draws.

        Where outcomes are enumerated these are themselves that, as nothing is drawn ahead.

        Args:
            number: each number gives other choices, and the same number the same ones.
        """
        return self


class Foreseen(Choices):
    """Choices by inversion of numbers that can be told before they are used, so that a device can draw with them.

    A draw takes the next number, uniform in [0, 1). What comes out is the first outcome up to which the law adds up to
    more than that share of its sum.
    """

    @abstractmethod
    def ahead(self, count: int) -> FloatArray:
        """The numbers of the next draws, shape `(count,)`, float64, in [0, 1). They are not used by being told."""

    @abstractmethod
    def used(self, count: int) -> None:
        """So many draws were made elsewhere, with the first numbers that `ahead` tells."""


class SeededChoices(Foreseen):
    """Draws by inversion from a seeded PCG64 generator; the same seed gives the same draws."""

    def __init__(self, seed: int | np.random.SeedSequence | None = None, place: int = 0) -> None:
        self._seed = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self._place = place
        self._told: FloatArray = np.empty(0)  # numbers that were told and are not used yet

    @cached_property
    def _generator(self) -> np.random.Generator:  # many never draw, and to make it takes longer than a draw
        bits = np.random.PCG64(self._seed)
        return np.random.Generator(bits.advance(self._place << PLACE) if self._place else bits)

    def at(self, place: int) -> "SeededChoices":
        """Choices for one of many places, each with draws of its own; those at place 0 are these from the start."""
        return SeededChoices(self._seed, place)

    def numbers_at(self, places: IntArray, count: int) -> FloatArray:
        """The first numbers of the choices `at` some places, in a part of the time.

        Args:
            places: in any order, shape `(places,)`.
            count: of each.

        Returns:
            Shape `(places, count)`, in [0, 1).
        """
        bits, next_ = np.random.PCG64(self._seed), 0
        generator, found = np.random.Generator(bits), np.empty((len(places), count))
        for row, place in zip(found, places.tolist(), strict=True):
            bits.advance((place << PLACE) - next_)
            generator.random(out=row)
            next_ = (place << PLACE) + count
        return found

    def apart(self, number: int) -> "SeededChoices":
        return SeededChoices(np.random.SeedSequence(self._seed.entropy, spawn_key=(*self._seed.spawn_key, number)))

    def ahead(self, count: int) -> FloatArray:
        missing = count - len(self._told)
        if missing > 0:
            self._told = np.concatenate([self._told, self._generator.random(missing)])
        return self._told[:count].copy()

    def used(self, count: int) -> None:
        self.ahead(count)
        self._told = self._told[count:]

    def pick(self, law: FloatArray) -> int:
        number = self._number()
        if len(law) <= BLOCK:
            cumulated = np.cumsum(law)
            return _first_above(cumulated, number * cumulated[-1])
        # First the block that holds it: cumulating a whole vocabulary takes ten times as long.
        blocks = np.cumsum(np.add.reduceat(law, np.arange(0, len(law), BLOCK)))
        threshold = number * blocks[-1]
        block = _first_above(blocks, threshold)
        inside = np.cumsum(law[block * BLOCK : (block + 1) * BLOCK])
        return block * BLOCK + _first_above(inside, threshold - (blocks[block - 1] if block else 0.0))

    def _number(self) -> float:
        if not len(self._told):
            return self._generator.random()
        number, self._told = float(self._told[0]), self._told[1:]
        return number


class ScriptedChoices(Choices):
    """Replays a script of outcomes and, past its end, takes the first possible one; `enumerate_outcomes` uses it.

    Args:
        script: the outcomes.
        laws: for each step of the script the law that was met there before.
    """

    def __init__(self, script: list[int], laws: Sequence[list[float]] = ()) -> None:
        self.script = script
        self.laws: list[list[float]] = []
        self.taken: list[int] = []
        self._before = laws

    def pick(self, law: FloatArray) -> int:
        numbers = np.asarray(law, dtype=np.float64)
        if numbers.ndim != 1 or not len(numbers):
            raise ValueError(f"a law has one axis, its outcomes, and at least one; got shape {numbers.shape}")
        probs = numbers.tolist()  # of a few outcomes: a list is faster than an array
        step = len(self.taken)
        if step < len(self.script):
            outcome = self.script[step]
            if step < len(self._before) and probs != self._before[step]:
                raise ValueError(
                    f"draw {step + 1} was from another law when everything drawn before was the same; "
                    "what is random must come from Choices alone"
                )
        else:
            if not (abs(sum(probs) - 1) <= LAW_SLACK and min(probs) >= 0):  # one that holds NaN is none either
                raise ValueError(f"it drew from {probs}, which {fault(numbers)}")
            outcome = next(at for at, prob in enumerate(probs) if prob > 0)
        self.laws.append(probs)
        self.taken.append(outcome)
        return outcome

    @property
    def prob(self) -> float:
        """Probability of the outcomes taken so far, in [0, 1]."""
        return math.prod(law[outcome] for law, outcome in zip(self.laws, self.taken, strict=True))


def enumerate_outcomes(experiment: Callable[[Choices], T]) -> Iterator[tuple[float, T]]:
    """Run `experiment` once for every possible sequence of random choices.

    Args:
        experiment: draws only through the `Choices` it is given and does the same whenever they are the same.

    Yields:
        Each outcome's probability and the experiment's result. The probabilities sum to 1.

    Raises:
        ValueError: in a draw of `experiment`, if it does not do the same whenever the choices are the same.
    """
    script: list[int] | None = []
    laws: list[list[float]] = []
    while script is not None:
        choices = ScriptedChoices(script, laws)
        result = experiment(choices)
        yield choices.prob, result
        script, laws = _next_script(choices), choices.laws


def _first_above(cumulated: FloatArray, threshold: float) -> int:
    """Where a rising sum exceeds a threshold first; where it reaches its end, if rounding has made that no more."""
    if not cumulated[-1] > 0:
        raise ValueError(f"nothing can be drawn from a law that sums to {cumulated[-1]}")
    return int(np.searchsorted(cumulated, min(threshold, np.nextafter(cumulated[-1], -1.0)), side="right"))


def _next_script(choices: ScriptedChoices) -> list[int] | None:
    for step in reversed(range(len(choices.taken))):
        law = choices.laws[step]
        for later in range(choices.taken[step] + 1, len(law)):
            if law[later] > 0:
                return [*choices.taken[:step], later]
    return None
