"""Chains whose tokens are drawn."""

from math import inf
from sys import maxsize

import attrs
from attrs.validators import ge, gt

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.choices import Choices
from talon_core.drawn import sharpened
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestLaws
from talon_core.forest_grower import ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.drawing import NOTHING, FollowsTheRequest, known_nodes
from talon_strategies.options import plus_one


@attrs.frozen
class SampledChain(FollowsTheRequest, ForestDrawer):
    """Draws `length` tokens one after the other from the drafter's laws (arXiv 2211.17192, section 2.3).

    Attributes:
        length: drafted tokens, at least 1; one draft pass each. Their gamma.
        temperature: tokens are drawn from the drafter's law at so many times the request's temperature, more than 0.
        follows: False draws at `temperature` itself, whatever the request's is.
    """

    name = "sampled-chain"
    paper = "arXiv 2211.17192"
    children = "sampled-chain"
    default_rule = "block"
    length: int = attrs.field(default=5, validator=[whole_number, ge(1)], metadata=searched(1, 12))
    temperature: float = attrs.field(default=1.0, validator=[number, gt(0)], metadata=searched(0.4, 1.2))
    follows: bool = attrs.field(default=True, validator=yes_or_no)
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: plus_one(self.length), takes_self=True))

    def chains(self) -> Chains:
        everything = (-inf,) * self.length
        return Chains(maxsize, 1, everything, everything, drawn=self.temperature)

    def chain_came(self, logp: FloatArray, nodes: int) -> None:
        """Nothing is to be noted: all chains are alike."""

    def width(self, tree: TokenTree) -> int:
        return 1

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        law = sharpened(candidates.law(0), self.temperature)
        return Growth(NOTHING, drawn={0: candidates.draw(choices, 0, law=law)})

    def forest_widths(self, forest: Forest) -> int:
        return 1

    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        drawn = laws.drawing(self.temperature)
        drawn.draw(known_nodes(candidates))
        return ForestGrowth(NOTHING, drawn=drawn)
