"""Layers that pool the candidates of all their parents and keep the best: the rule of TALON, EAGLE-2 and chains."""

from abc import abstractmethod

import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.forest import Count, Forest, ForestCandidates, Level
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.policy import Growth
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import places_of

Pool = Candidates | ForestCandidates
"""The candidates of a layer, of one tree or of each tree of a forest."""


class PooledLayers(ForestGrower):
    """Keeps the best of each layer's candidates, whichever parents they have, and drafts from the best of these.

    A subclass says with `cut` how many they are and how likely they must be. It says so for one tree in numbers, and
    for the trees of a forest, which have had as many layers, in arrays of the shape `(trees,)`: NumPy's functions, as
    `np.minimum`, take both.
    """

    @abstractmethod
    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        """Which of a layer's candidates join.

        Args:
            layer: which, counted from 0.
            nodes: of the tree so far, the root included.
            pool: the candidates; `pool.highest()` is the log-probability of the likeliest path.

        Returns:
            How many join at most, and the least log-probability of their paths.
        """

    def wanted(self, nodes: Count) -> Count:
        """Candidates of each frontier node; by default as many as there is room for."""
        return self.draft_budget - nodes

    def expanded(self, layer: int) -> int | None:
        """How many of those that join a layer are drafted from next, the best first; None (the default) for all."""
        return None

    def scores(self, pool: Pool) -> FloatArray | None:
        """What candidates are ranked by and held against the least; None (the default) for their paths."""
        return None

    def width(self, tree: TokenTree) -> int:
        return int(self.wanted(len(tree)))

    def widths(self, forest: Forest) -> Count:
        return self.wanted(forest.sizes)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        layer = tree.depths.item(candidates.frontier.item(0))
        count, least = self.cut(layer, len(tree), candidates)
        chosen = candidates.best(int(count), score=self.scores(candidates), at_least=float(least))
        expanded = self.expanded(layer)
        if expanded is None:
            return Growth(chosen)
        return Growth(chosen, frontier=np.arange(len(tree), len(tree) + min(expanded, len(chosen))))

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        count, least = self.cut(forest.layer, forest.sizes, candidates)
        chosen = candidates.best(count, score=self.scores(candidates), at_least=least)
        expanded = self.expanded(forest.layer)
        if expanded is None:
            return ForestGrowth(chosen)
        joined = np.bincount(candidates.trees_of(chosen), minlength=forest.size)  # tree by tree, best first
        return ForestGrowth(chosen, len(forest) + places_of(np.cumsum(joined) - joined, np.minimum(joined, expanded)))


class RankedAgain(PooledLayers):
    """Drafts more nodes than it verifies, and keeps the likeliest of them all."""

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(tree.best(self.budget))

    def finish_forest(self, forest: Forest) -> IntArray | None:
        return forest.best(self.budget)
