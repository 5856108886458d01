"""An optional ability of policies that draw: to draw for many trees in one call."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from talon_core.basics.overriding import overrides
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrowth
from talon_core.policy import TreePolicy
from talon_core.tree import FloatArray, IntArray


class ForestDraws(ABC):
    """Draws under the frontier nodes of a forest, all of one layer, from laws of one kind; `draw` makes them.

    Attributes:
        laws: at whose frontier; None when the layer is over.
        replacement: every draw is from the same law; otherwise each is from that without the tokens before it.
        without: the candidates that the laws leave out, as indices into the flattened rectangle, shape `(out,)`.
        rows: under which frontier row each draw was made, in the order in which they were, shape `(draws,)`, int64.
        tokens: what came out, likewise.
        prob: what a token has of the law of its row's first draw, shape `(draws,)`, float64.
    """

    laws: "ForestLaws | None"
    replacement: bool
    without: IntArray
    rows: IntArray
    tokens: IntArray
    prob: FloatArray

    @abstractmethod
    def draw(self, rows: IntArray) -> NDArray[np.bool_]:
        """Draw further children.

        Each tree's draws take its numbers in the order in which they are made, as `Candidates.draw` does.

        Args:
            rows: under which frontier rows, tree by tree, shape `(wanted,)`; a row for each draw.

        Returns:
            Whether a token came out, shape `(wanted,)`; none does where all that can come has been drawn.
        """


def check_rows(rows: IntArray, candidates: ForestCandidates) -> None:
    """Refuse rows that nothing can be drawn under, or that are not given tree by tree; for `ForestDraws.draw`.

    Raises:
        ValueError: if there are such.
    """
    count = len(candidates.frontier)
    if rows.ndim != 1 or (len(rows) and (rows.min() < 0 or rows.max() >= count)):
        raise ValueError(f"draws are wanted under rows that are not there; there are rows 0 to {count - 1}")
    trees = candidates.trees[rows]
    if (trees[1:] < trees[:-1]).any():
        raise ValueError("the rows under which draws are wanted are not given tree by tree")


class ForestLaws(ABC):
    """The drafter's whole laws at the frontier of a forest."""

    @abstractmethod
    def drawing(
        self, temperature: float = 1.0, *, replacement: bool = False, without: IntArray | None = None
    ) -> ForestDraws:
        """Begin to draw.

        Args:
            temperature: children are drawn from the laws at it, in proportion to `law ** (1 / temperature)`.
            replacement: draw each from the same law.
            without: candidates that the laws leave out, as indices into the flattened `(frontier, width)` rectangle.
        """


class ForestDrawer(TreePolicy):
    """A policy that can draw for many trees in one call: an optional ability, for speed alone.

    It is a `ForestGrower` whose children are drawn. Where the trees of many rounds are wanted at once, as while a trace
    with whole laws is replayed, what is asked is `forest_widths` and `draw_forest` once per layer, then
    `finish_forest`. Both ways must lead to the same trees with the same numbers, which
    `talon_core.testing.check_tree_policy` tries. So such a policy decides by the tree, its candidates and its draws
    alone, and learns nothing from round to round.

    A subclass that overrides `width`, `grow`, `finish` or `observe` alone has its trees grown one by one.
    """

    def forest_widths(self, forest: Forest) -> Count:
        """`TreePolicy.width` for each tree, shape `(trees,)`, or one number for all."""
        return self.draft_budget - forest.sizes

    @abstractmethod
    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        """`TreePolicy.grow` for each tree that has rows in `candidates`.

        Args:
            forest: every node so far; read only.
            candidates: for each frontier node its best next tokens; of each tree that is there at least one is real.
            laws: by which children are drawn.

        Returns:
            What joins: of each tree the candidates that were chosen first, then what was drawn, row by row in the order
            of their first draws.
        """

    def finish_forest(self, forest: Forest) -> IntArray | None:
        """As `ForestGrower.finish_forest`."""
        return None


ALIKE = {"width": "forest_widths", "grow": "draw_forest", "finish": "finish_forest"}
"""Methods for one tree, and what answers in their place for a forest."""


def forest_drawer(policy: TreePolicy) -> ForestDrawer | None:
    """A policy as one that draws for forests; None if it cannot, or a subclass has changed what it does."""
    if not isinstance(policy, ForestDrawer):
        return None
    cls = type(policy)
    changed = any(overrides(cls, [one], other) for one, other in ALIKE.items())
    changed |= overrides(cls, policy.hooks, "draw_forest") or cls.observe is not TreePolicy.observe
    return None if changed or policy.children == "deterministic" else policy
