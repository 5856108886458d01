"""DDTree: the likeliest paths of all."""

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import IntArray, TokenTree
from talon_strategies.best_first import BestFirst, Likeliest, LikeliestOfEach


@attrs.frozen
class DDTree(BestFirst, ForestGrower):
    """The `budget` - 1 likeliest of all paths that the drafter knows (DDTree, arXiv 2604.12989, algorithm 1).

    The paper's drafter gives a law for each position of a block at once, whatever comes before it, and one heap over
    tuples of ranks finds the best products. Our drafters are asked layer by layer, those of blocks too. It ends where
    no candidate of a layer is among the likeliest nodes so far: nothing below can be. So the tree is the same for a
    drafter of blocks, and for one whose laws depend on the path, which takes a draft pass for each layer, perhaps many.

    Attributes:
        budget: nodes of the tree, the root included, at least 2; their n, which does not count the root, and one. With
            more than 362 there would be no room for all that may be drafted.
    """

    name = "ddtree"
    purpose = "trees by confidence"
    paper = "arXiv 2604.12989"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(Likeliest.of(tree.path_logp, candidates, self.budget - 1).chosen)

    def widths(self, forest: Forest) -> Count:
        return self.budget - 1

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        return ForestGrowth(LikeliestOfEach.of(forest, candidates, self.budget - 1).chosen)

    def finish_forest(self, forest: Forest) -> IntArray:
        return forest.best(self.budget)
