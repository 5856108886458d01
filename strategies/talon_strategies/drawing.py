"""What policies that draw have in common."""

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.forest import ForestCandidates
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.tree import IntArray

FINITE = np.finfo(np.float64)

AGREEMENT = (0.1, 0.8)
"""How likely a drawn child is accepted, if all other tokens are its rivals: 0.1 + 0.8 q(best). An assumption about a
fair drafter; `tests/benchmarks/drawn_agreement.py` shows what SmolLM2's is like."""

NOTHING: IntArray = np.empty(0, dtype=np.int64)
"""No fixed candidates."""


def known_rows(candidates: Candidates) -> list[int]:
    """Frontier rows of which the drafter knows something, and so has a law."""
    rows: list[int] = np.flatnonzero(candidates.tokens[:, 0] >= 0).tolist()
    return rows


def known_nodes(candidates: ForestCandidates) -> IntArray:
    """The same of a forest, shape `(known,)`."""
    return (candidates.logp[:, 0] > -np.inf).nonzero()[0]


def drawn_at(temperature: float, sequence: SequenceInfo) -> float:
    """So many times the temperature of a request that samples, as a finite number more than 0."""
    return float(np.clip(temperature * sequence.temperature, FINITE.tiny, FINITE.max))


class FollowsTheRequest(TreePolicy):
    """A policy whose draws are made at a temperature that follows the request's.

    Attributes:
        temperature: tokens are drawn from the drafter's law at this temperature, more than 0.
        follows: that is times the request's, where it samples; False takes it as it is.
    """

    purpose = "drawn children, for sampling"

    temperature: float
    follows: bool

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        one = super().begin(sequence)
        if not self.follows or sequence.greedy:
            return one
        own = drawn_at(self.temperature, sequence)
        return attrs.evolve(one, temperature=own, follows=False)  # type: ignore[misc]  # subclasses are attrs'
