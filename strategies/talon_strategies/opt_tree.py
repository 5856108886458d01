"""OPT-Tree: the likeliest paths, drafted while a layer adds enough."""

import attrs
import numpy as np
from attrs.validators import ge

from talon_core.basics.option_checks import number, whole_number
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import IntArray, TokenTree
from talon_core.tree_arrays import totals
from talon_strategies.best_first import BestFirst, Likeliest, LikeliestOfEach, drafted_prob


@attrs.frozen
class OptTree(BestFirst, ForestGrower):
    """Drafts on while the expected accepted tokens grow by more than `delta` (OPT-Tree, arXiv 2406.17276, section 3).

    Their number is the sum of the path probabilities of the `budget` - 1 likeliest nodes of all layers, which are the
    tree in the end. The paper drafts from as many nodes of each layer as the tree has. Those that are not among the
    likeliest so far cannot lead to one that is, and are left out here: the same tree from fewer rows. The layer that
    adds too little has been drafted, and counts; the authors' code leaves the newest layer out.

    Attributes:
        budget: nodes of the tree, the root included, at least 2; their n, which does not count the root, and one.
        delta: by how much a layer must raise the sum for another one to be drafted, at least 0; their threshold.
        depth: most layers, at least 1; one draft pass each.
    """

    name = "opt-tree"
    purpose = "trees by confidence"
    paper = "arXiv 2406.17276"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    delta: float = attrs.field(default=0.5, validator=[number, ge(0)], metadata=searched(0.0, 0.8))
    depth: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 12))

    @property
    def layers(self) -> int:
        return self.depth

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        best = Likeliest.of(tree.path_logp, candidates, self.budget - 1)
        before = np.exp(-np.sort(-tree.path_logp[1:])[: self.budget - 1])
        last = tree.depths[candidates.frontier[0]] + 1 == self.depth
        gain = totals(best.prob) - totals(np.append(before, 0.0))
        expanded = len(best.chosen) if gain > self.delta and not last else 0
        return Growth(best.chosen, frontier=len(tree) + np.arange(expanded))

    def widths(self, forest: Forest) -> Count:
        return self.budget - 1

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        best = LikeliestOfEach.of(forest, candidates, self.budget - 1)
        before, trees = drafted_prob(forest, self.budget - 1)
        gain = np.bincount(best.trees, best.prob, forest.size) - np.bincount(trees, before, forest.size)
        goes_on = gain[candidates.trees_of(best.chosen)] > self.delta
        last = forest.layer + 1 == self.depth
        return ForestGrowth(best.chosen, len(forest) + (np.arange(0) if last else np.flatnonzero(goes_on)))

    def finish_forest(self, forest: Forest) -> IntArray:
        return forest.best(self.budget)
