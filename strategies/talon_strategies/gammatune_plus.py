"""Chains whose length follows what was accepted before, and that end early where the drafter is not sure."""

import math

import attrs
from attrs.validators import ge, le

from talon_core.candidates import Candidates
from talon_core.searching import searched
from talon_core.tree import TokenTree
from talon_strategies.gammatune import GammaTune
from talon_strategies.options import number


@attrs.frozen
class GammaTunePlus(GammaTune):
    """As `gammatune`, and ends a chain where the drafter's best token is less likely than `tau` (GammaTune+).

    Source: arXiv 2504.00030, which says no tau: the default is ours, and so is that the token still joins.

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
        return super().stops(tree, candidates) or math.exp(candidates.logp[0, 0]) < self.tau
