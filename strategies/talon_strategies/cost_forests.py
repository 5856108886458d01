"""Cost-aware policies whose prices depend on the length of the text alone: many of their trees in one call."""

from abc import abstractmethod
from itertools import islice

import attrs
import numpy as np

from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.tree import FloatArray, IntArray
from talon_strategies.best_first import LikeliestOfEach
from talon_strategies.cost_aware import CostAware, rates

KEPT = 4096
"""Lengths of texts whose prices are kept, at most; of more the latest ones."""


@attrs.define(eq=False)
class KnownOfEach:
    """What is known of each tree of a forest while they grow; see `Known` for what it is of one.

    Attributes:
        verifying: shape `(trees, budget)`.
        drafting: seconds of its layers, shape `(trees,)`.
        rates: the highest with these, likewise.
        nodes: likewise.
    """

    verifying: FloatArray
    drafting: FloatArray
    rates: FloatArray
    nodes: IntArray


@attrs.define(eq=False)
class Forests:
    """What is known of the forests of a policy.

    Attributes:
        prices: by the committed tokens, what the policy's method of this name says, shape `(1 + budget,)`; of `KEPT`
            lengths between forests.
        growing: of the newest forest, once a layer of it was drafted.
    """

    prices: dict[int, FloatArray] = attrs.field(factory=dict)
    growing: KnownOfEach | None = None


@attrs.frozen
class CostAwareForests(CostAware, ForestGrower):
    """A cost-aware policy that asks for its prices anew in each round.

    Under costs that stay as they are (`Costs.fixed`), these depend on the length of the text alone.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2.
        depth: most layers, at least 1.
        forests: what is known of those that it has grown.
    """

    hooks = ("scored", "priced", "renew")

    forests: Forests = attrs.field(init=False, eq=False, repr=False, factory=Forests)

    @abstractmethod
    def worth(self, prob: FloatArray, seconds: FloatArray) -> Count:
        """How many drafted nodes are worth verifying, of one tree or of each of some, shape `(trees,)`.

        Args:
            prob: path probabilities of the likeliest, falling, shape `(nodes,)` or `(trees, nodes)`. Where a tree has
                fewer than another one, zeros follow them.
            seconds: of the round with 0, 1, ... of them, shape `(nodes + 1,)` or `(trees, nodes + 1)`, rising. Where a
                tree has fewer, its last number stands again.
        """

    def learns_nothing(self) -> bool:
        return self.stand == 1 and self.known.costs.fixed

    def widths(self, forest: Forest) -> Count:
        return self.budget - 1

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        known = self._known(forest)
        rows = np.bincount(candidates.trees, minlength=forest.size)
        (trees,) = rows.nonzero()
        known.drafting[trees] += self._layers(rows[trees])
        best = LikeliestOfEach.of(forest, candidates, self.budget - 1)
        held = np.bincount(best.trees, minlength=forest.size)
        firsts = np.cumsum(held) - held
        prob = np.zeros((forest.size, self.budget - 1))
        prob[best.trees, np.arange(len(best.trees)) - firsts[best.trees]] = best.prob
        sizes = np.minimum(np.arange(self.budget), held[trees, None])
        seconds = known.drafting[trees, None] + known.verifying[trees[:, None], sizes]
        nodes = np.asarray(self.worth(prob[trees], seconds))
        highest = rates(prob[trees], seconds)[np.arange(len(trees)), nodes]
        known.nodes[trees] = nodes
        goes_on = np.zeros(forest.size, dtype=bool)
        goes_on[trees] = (highest > known.rates[trees]) & (forest.layer + 1 < self.depth)
        known.rates[trees] = highest
        chosen_in = candidates.trees_of(best.chosen)
        expanded = goes_on[chosen_in] & (best.places - firsts[chosen_in] < known.nodes[chosen_in])
        return ForestGrowth(best.chosen, len(forest) + expanded.nonzero()[0])

    def finish_forest(self, forest: Forest) -> IntArray:
        known = self.forests.growing
        return forest.best(1 if forest.layer == 0 or known is None else 1 + known.nodes)

    def _known(self, forest: Forest) -> KnownOfEach:
        """What is known of the trees of a forest that are about to get a layer."""
        known = self.forests.growing
        if forest.layer == 0 or known is None:
            prices, contexts = self.forests.prices, forest.contexts.tolist()
            new = sorted({*contexts} - prices.keys())
            if new:
                prices.update(zip(new, self.prices(new), strict=True))
            found = np.array([prices[context] for context in contexts])
            for oldest in [*islice(prices, max(0, len(prices) - KEPT))]:
                del prices[oldest]
            nothing = np.zeros(forest.size)
            known = KnownOfEach(found[:, 1:], nothing, 1.0 / found[:, 0], nothing.astype(np.int64))
            self.forests.growing = known
        return known

    def _layers(self, rows: IntArray) -> FloatArray:
        """Seconds of a layer of each of some trees with so many frontier nodes, shape `(trees,)`."""
        sizes, of_trees = np.unique(rows, return_inverse=True)
        return np.array([self.layer(size, self.budget - 1) for size in sizes.tolist()])[of_trees]
