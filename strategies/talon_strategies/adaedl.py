"""Chains that end where the drafter's entropy promises little acceptance, by a threshold that follows what happens."""

import math
from collections.abc import Iterator
from functools import cache

import attrs
import numpy as np
from attrs.validators import ge, gt, le
from numpy.typing import NDArray

from talon_core.basics.option_checks import number, whole_number
from talon_core.candidates import Candidates
from talon_core.forest_planner import AskedLayer, CountingPlanner, RoundCounts, TreePlan
from talon_core.searching import searched
from talon_core.tree import IntArray, TokenTree
from talon_strategies.entropy import OFFERED, entropies_of, entropy_offered
from talon_strategies.pooled import Pool
from talon_strategies.stopping import PlainChain, StoppingChain, plain_chain

COARSE, SLOW = 4, 0.01
"""For the trees that are planned thresholds are rounded down to a multiple of 1 / `COARSE`, less half of that; if they
move by no more than `SLOW` from round to round, as trees are grown for each that comes."""


@attrs.define
class Threshold:
    """What is learnt of one text.

    Attributes:
        now: their lambda.
        accepted: the running average of the accepted share of the drafted tokens; their AR.
    """

    now: float
    accepted: float


@attrs.frozen
class AdaEdl(StoppingChain, CountingPlanner):  # pyright: ignore[reportIncompatibleVariableOverride]  # of `budget`
    """Ends a chain where 1 - sqrt(`factor` H(q)) is less than a threshold (AdaEDL, arXiv 2410.18351, section 3).

    That is a lower bound of the probability that a token is accepted. The threshold, their lambda, follows what was
    accepted (algorithm 1). After a round with A of d drafted tokens accepted, the average share becomes
    (1 - `weight`) average + `weight` A / d. If it is below `goal` then, the threshold grows by `step`; else it falls by
    `step`, but stays where all `length` tokens were accepted. Their epsilon is smoothed with beta_2, and `step` is
    epsilon (1 - beta_2), with their numbers 0.001; `goal` is their alpha, and 1 - `weight` their beta_1. The algorithm
    is known to us from others' code, of which three agree.

    Ours are that the average begins at `goal`, that the threshold stays within [0, 1], that a round without any drafted
    token changes nothing, and the defaults of `threshold` and `length`. As we read it, the test comes after the token
    has joined. H(q) is in nats, of the 16 best candidates with all other tokens taken for one: a lower bound, so that
    at equal thresholds chains can be longer than the paper's. Of 49,152 tokens, the best with 0.9 and the others alike,
    it is 0.325 in the place of 1.405.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        threshold: their lambda in the first round, in [0, 1]; the larger, the shorter the chain.
        factor: what the entropy is multiplied with, more than 0.
        goal: the share of drafted tokens that is to be accepted, in [0, 1].
        step: by how much the threshold moves after a round, in [0, 1]; at 0 it stays as it is.
        weight: of the last round in the average share, in (0, 1].
    """

    name = "adaedl"
    paper = "arXiv 2410.18351"
    offered = OFFERED
    length: int = attrs.field(default=20, validator=[whole_number, ge(1)], metadata=searched(4, 40, log=True))
    threshold: float = attrs.field(default=0.5, validator=[number, ge(0), le(1)], metadata=searched(0.1, 0.9))
    factor: float = attrs.field(default=0.2, validator=[number, gt(0)])
    goal: float = attrs.field(default=0.9, validator=[number, ge(0), le(1)], metadata=searched(0.3, 0.95))
    step: float = attrs.field(default=0.001, validator=[number, ge(0), le(1)], metadata=searched(0.0, 0.1))
    weight: float = attrs.field(default=0.5, validator=[number, gt(0), le(1)])
    learnt: Threshold = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(lambda self: Threshold(self.threshold, self.goal), takes_self=True),
    )

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return self._unsure(entropy_offered(candidates))

    def _unsure(self, entropy: float) -> bool:
        return 1.0 - math.sqrt(self.factor * entropy) < self.learnt.now

    def plan(self) -> TreePlan:
        if self.step > SLOW:
            return plain_chain(self.length, self.offered)
        level = math.floor(self.learnt.now * COARSE + 0.5)
        return unsure_chain(self.length, level - (lowest(level) > self.learnt.now), self.factor)

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        entropies = (layer.measured(entropies_of).item() for layer in layers)
        return next((depth for depth, entropy in enumerate(entropies, 1) if self._unsure(entropy)), None)

    def observe_counts(self, counts: RoundCounts) -> None:
        drafted = counts.nodes - 1
        if not drafted:
            return
        learnt = self.learnt
        learnt.accepted += self.weight * (counts.accepted / drafted - learnt.accepted)
        if learnt.accepted < self.goal:
            learnt.now = min(learnt.now + self.step, 1.0)
        elif counts.accepted < self.length:
            learnt.now = max(learnt.now - self.step, 0.0)


@attrs.frozen(cache_hash=True)
class UnsureChain(PlainChain):
    """A chain that ends where a threshold that is not above the one of a round would end it, or later.

    So trees are grown once for many rounds, and not much deeper than these have them.

    Attributes:
        length: drafted tokens at most, at least 1.
        level: says which, see `lowest`.
        factor: as of the policy.
    """

    name = "unsure-chain"
    level: int = attrs.field(kw_only=True)
    factor: float = attrs.field(kw_only=True)

    def ends(self, nodes: IntArray, pool: Pool) -> NDArray[np.bool_]:
        with np.errstate(all="ignore"):  # an infinite product ends any chain
            bounds = 1.0 - np.sqrt(float(self.factor) * entropies_of(pool.logp))
        ended: NDArray[np.bool_] = super().ends(nodes, pool) | (bounds < lowest(self.level))
        return ended


def lowest(level: int) -> float:
    """The threshold of a level."""
    return (level - 0.5) / COARSE


@cache
def unsure_chain(length: int, level: int, factor: float) -> TreePlan:
    """The plan of an `UnsureChain`."""
    return TreePlan(UnsureChain(length, OFFERED, level=level, factor=factor))
