"""Trees of the likeliest paths, drafted layer by layer."""

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.forest import Forest, ForestCandidates
from talon_core.policy import TreePolicy
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import by_number, highest, highest_of_each


@attrs.frozen(eq=False)
class Likeliest:
    """The likeliest nodes that have been drafted, the newest layer's candidates among them; the root is none of them.

    Attributes:
        prob: their path probabilities, falling, shape `(nodes,)`.
        chosen: those that are candidates, as flat indices, best first, shape `(chosen,)`.
        places: where these stand in `prob`, rising, shape `(chosen,)`; of equals the earlier layer's comes first.
    """

    prob: FloatArray
    chosen: IntArray
    places: IntArray

    @classmethod
    def of(cls, drafted: FloatArray, candidates: Candidates, count: int) -> "Likeliest":
        """The `count` likeliest of all, or fewer where there are no more.

        Args:
            drafted: log-probabilities of the paths to all nodes that have been drafted before, the root's first.
            candidates: for the newest of these.
            count: how many.
        """
        offered = candidates.path_logp.ravel()
        best = highest(offered, count)
        scores = -offered.take(best)  # of log-probabilities the negative ones, as NumPy sorts upwards
        if len(scores) and scores.item(-1) == np.inf:  # padding
            real = int(scores.searchsorted(np.inf))
            best, scores = best[:real], scores[:real]
        if len(drafted) == 1:
            return cls(np.exp(-scores), best, np.arange(len(best)))
        earlier = -drafted[1:]
        earlier.sort()
        places = earlier.searchsorted(scores, side="right") + np.arange(len(best))
        both = np.concatenate([earlier, scores])
        both.sort()
        among = int(places.searchsorted(count))
        return cls(np.exp(-both[:count]), best[:among], places[:among])


class BestFirst(TreePolicy):
    """A policy that verifies the likeliest paths, whichever layers they end in.

    Path probabilities fall from layer to layer. So what is not among the `budget` - 1 likeliest nodes so far has no
    descendant among those of the finished tree: it need not join, and nothing is drafted from it.

    Attributes:
        budget: nodes of the tree, the root included, at least 2.
    """

    budget: int

    @property
    def layers(self) -> int:
        """Most layers; no path is longer than its nodes are many."""
        return self.budget - 1

    @property
    def draft_budget(self) -> int:
        most, layers = self.budget - 1, min(self.layers, self.budget - 1)
        return 1 + layers * (2 * most - layers + 1) // 2  # ancestors come first: `most` in a layer, then one fewer

    def width(self, tree: TokenTree) -> int:
        return self.budget - 1

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(tree.best(self.budget))


@attrs.frozen(eq=False)
class LikeliestOfEach:
    """As `Likeliest`, of each tree of a forest.

    Attributes:
        chosen: those that are candidates, as flat indices, tree by tree, best first, shape `(chosen,)`.
        places: where these stand in `prob`, rising, likewise.
        prob: the path probabilities of all of them, tree by tree, falling, shape `(nodes,)`.
        trees: in which tree each of these is, likewise.
    """

    chosen: IntArray
    places: IntArray
    prob: FloatArray
    trees: IntArray

    @classmethod
    def of(cls, forest: Forest, candidates: ForestCandidates, count: int) -> "LikeliestOfEach":
        """The `count` likeliest of all nodes of each tree, or fewer where there are no more."""
        best = candidates.among_best(count)
        drafted = np.arange(forest.size, len(forest))  # the roots are none of them
        scores = np.concatenate([forest.path_logp[drafted], candidates.path_logp.ravel()[best]])
        trees = np.concatenate([forest.trees[drafted], candidates.trees_of(best)])
        found = _highest_by_tree(scores, trees, forest.size, count)  # of equals an earlier layer's comes first
        among = found - len(drafted)
        (places,) = (among >= 0).nonzero()
        return cls(best[among[places]], places, np.exp(scores[found]), trees[found])


def drafted_prob(forest: Forest, count: int) -> tuple[FloatArray, IntArray]:
    """The path probabilities of the `count` likeliest nodes of each tree, as in `LikeliestOfEach`, and their trees."""
    drafted = np.arange(forest.size, len(forest))
    scores, trees = forest.path_logp[drafted], forest.trees[drafted]
    found = _highest_by_tree(scores, trees, forest.size, count)
    return np.exp(scores[found]), trees[found]


def _highest_by_tree(scores: FloatArray, trees: IntArray, size: int, count: int) -> IntArray:
    """The places of the `count` highest scores of each tree, tree by tree, highest first."""
    order = by_number(trees, size)
    held = np.bincount(trees, minlength=size)
    return order[highest_of_each(scores[order], held, np.full(size, count))]
