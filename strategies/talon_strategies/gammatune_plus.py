"""Chains whose length follows what was accepted before, and that end early where the drafter is not sure."""

import attrs
import numpy as np
from attrs.validators import ge, le
from numpy.typing import NDArray

from talon_core.basics.option_checks import number
from talon_core.candidates import Candidates
from talon_core.forest_planner import TreePlan
from talon_core.searching import searched
from talon_core.tree import IntArray, TokenTree
from talon_strategies.gammatune import GammaTune
from talon_strategies.pooled import Pool
from talon_strategies.stopping import PlainChain


@attrs.frozen
class GammaTunePlus(GammaTune):
    """As `gammatune`, and ends a chain where the drafter's best token is less likely than `tau` (GammaTune+).

    Lengths follow algorithm 1 of arXiv 2504.00030. Which section tells of tau is not known to us, and no source gives
    its value: the default is ours, and so is that the token still joins.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        start: drafted tokens of the first round, at least 1; `length` if that is less.
        weight: of the last round in the average, in (0, 1].
        growth: how many more tokens than were accepted are drafted after full acceptance, at least 0.
        tau: the least probability of the best token after which drafting goes on, in [0, 1].
    """

    name = "gammatune-plus"
    tau: float = attrs.field(default=0.4, validator=[number, ge(0), le(1)], metadata=searched(0.1, 0.9))

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return super().stops(tree, candidates) or self.sure.stops(tree, candidates)

    def plan(self) -> TreePlan:
        return TreePlan(self.sure, self.planned)

    @property
    def sure(self) -> "SureChain":
        """The chain that `tau` alone ends."""
        return SureChain(self.length, tau=self.tau)


@attrs.frozen(cache_hash=True)
class SureChain(PlainChain):
    """A chain that ends where the drafter's best token is not likely.

    Attributes:
        length: drafted tokens at most, at least 1.
        tau: as of the policy.
    """

    name = "sure-chain"
    tau: float = attrs.field(kw_only=True)

    def ends(self, nodes: IntArray, pool: Pool) -> NDArray[np.bool_]:
        ended: NDArray[np.bool_] = super().ends(nodes, pool) | (np.exp(pool.logp[:, 0]) < self.tau)
        return ended
