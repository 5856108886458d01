"""Trees of the likeliest paths, drafted layer by layer."""

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.forest import Forest, ForestCandidates
from talon_core.policy import TreePolicy
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import by_number, highest_of_each


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
        best = candidates.best(count)
        scores = candidates.path_logp.ravel()[best]
        earlier = np.sort(-drafted[1:])
        places = np.searchsorted(earlier, -scores, side="right") + np.arange(len(best))
        falling = np.sort(np.concatenate([earlier, -scores]))[:count]
        among = int(np.searchsorted(places, count))
        return cls(np.exp(-falling), best[:among], places[:among])


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


def likeliest_of(forest: Forest, candidates: ForestCandidates, count: int) -> IntArray:
    """Those candidates of a forest that are among the `count` likeliest nodes of their tree, see `Likeliest.chosen`."""
    best = candidates.best(count)
    drafted = np.arange(forest.size, len(forest))  # the roots are none of them
    scores = np.concatenate([forest.path_logp[drafted], candidates.path_logp.ravel()[best]])
    trees = np.concatenate([forest.trees[drafted], candidates.trees_of(best)])
    order = by_number(trees, forest.size)  # earlier layers come first, then the best
    held = np.bincount(trees, minlength=forest.size)
    among = order[highest_of_each(scores[order], held, np.full(forest.size, count))] - len(drafted)
    return best[among[among >= 0]]
