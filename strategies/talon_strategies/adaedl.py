"""Chains that end where the drafter's entropy promises little acceptance, by a threshold that follows what happens."""

import math
from collections.abc import Iterator

import attrs
from attrs.validators import ge, gt, le

from talon_core.candidates import Candidates
from talon_core.forest_planner import AskedLayer, ForestPlanner, TreePlan
from talon_core.rounds import Round
from talon_core.searching import searched
from talon_core.tree import TokenTree
from talon_strategies.entropy import OFFERED, entropies_of, entropy_offered
from talon_strategies.options import number, whole_number
from talon_strategies.stopping import PlainChain, StoppingChain


@attrs.define
class Threshold:
    """What is learnt of one text.

    Attributes:
        now: their lambda.
    """

    now: float


@attrs.frozen
class AdaEdl(StoppingChain, ForestPlanner):  # pyright: ignore[reportIncompatibleVariableOverride]  # of `budget`
    """Ends a chain where 1 - sqrt(`factor` H(q)) is less than a threshold (AdaEDL, arXiv 2410.18351).

    Published are that lower bound of the probability that a token is accepted, its `factor`, and that the threshold,
    their lambda, moves with what was accepted. How it moves we could not confirm, so the rule is ours, and so are the
    defaults of `threshold`, `goal`, `step` and `length`: after each round, `threshold` grows by `step` times what the
    accepted share of the drafted tokens lacks to `goal`, within [0, 1]. As we read it, the test comes after the token
    has joined. H(q) is in nats, of the 16 best candidates with all other tokens taken for one: a lower bound.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        threshold: their lambda in the first round, in [0, 1]; the larger, the shorter the chain.
        factor: what the entropy is multiplied with, more than 0.
        goal: the share of drafted tokens that is to be accepted, in [0, 1].
        step: how fast the threshold moves, in [0, 1]; at 0 it stays as it is.
    """

    name = "adaedl"
    paper = "arXiv 2410.18351"
    offered = OFFERED
    length: int = attrs.field(default=20, validator=[whole_number, ge(1)], metadata=searched(4, 40, log=True))
    threshold: float = attrs.field(default=0.5, validator=[number, ge(0), le(1)], metadata=searched(0.1, 0.9))
    factor: float = attrs.field(default=0.2, validator=[number, gt(0)])
    goal: float = attrs.field(default=0.7, validator=[number, ge(0), le(1)], metadata=searched(0.3, 0.95))
    step: float = attrs.field(default=0.05, validator=[number, ge(0), le(1)], metadata=searched(0.0, 0.3))
    learnt: Threshold = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(lambda self: Threshold(self.threshold), takes_self=True)
    )

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return self._unsure(entropy_offered(candidates))

    def _unsure(self, entropy: float) -> bool:
        return 1.0 - math.sqrt(self.factor * entropy) < self.learnt.now

    def plan(self) -> TreePlan:
        return TreePlan(PlainChain(self.length, self.offered))

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        entropies = (layer.measured(entropies_of).item() for layer in layers)
        return next((depth for depth, entropy in enumerate(entropies, 1) if self._unsure(entropy)), None)

    def observe(self, round_: Round) -> None:
        drafted = len(round_.tree) - 1
        if drafted:
            moved = self.learnt.now + self.step * (self.goal - round_.accepted / drafted)
            self.learnt.now = min(max(moved, 0.0), 1.0)
