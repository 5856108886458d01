"""SpecInfer's trees of independent draws."""

import math
from typing import Any

import attrs
import numpy as np
from attrs.validators import gt

from talon_core.basics.option_checks import number, yes_or_no
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drawn import sharpened
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestLaws
from talon_core.forest_grower import ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import IntArray, TokenTree
from talon_strategies.drawing import NOTHING, FollowsTheRequest, known_nodes, known_rows
from talon_strategies.options import are_positive, numbers_of, positive_numbers

THREE_THEN_ONE: Any = "3;1;1;1"  # text, as users write it and `talon list` shows it; the converter makes it numbers


def _widths(given: Any) -> Any:
    return numbers_of(given, int, "widths", "3;1;1")


def _nodes(widths: Any) -> int:
    """Most nodes of the tree; 1 for what are no widths, which is refused after this."""
    if not are_positive(widths):
        return 1
    return 1 + sum(math.prod(int(width) for width in widths[: depth + 1]) for depth in range(len(widths)))


@attrs.frozen
class SpecInfer(FollowsTheRequest, ForestDrawer):
    """Draws a fixed number of independent children for each node of a layer (SpecInfer, arXiv 2305.09781, section 3).

    A token that is drawn twice under one node is one node.

    Attributes:
        widths: draws under each node, layer by layer from the first; their expansion configuration. As text, numbers
            with `;` between them.
        temperature: tokens are drawn from the drafter's law at so many times the request's temperature, more than 0.
        follows: False draws at `temperature` itself, whatever the request's is.
    """

    name = "specinfer"
    paper = "arXiv 2305.09781"
    children = "iid"
    default_rule = "rrs"
    widths: tuple[int, ...] = attrs.field(default=THREE_THEN_ONE, converter=_widths, validator=positive_numbers)
    temperature: float = attrs.field(default=1.0, validator=[number, gt(0)], metadata=searched(0.4, 1.2))
    follows: bool = attrs.field(default=True, validator=yes_or_no)
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: _nodes(self.widths), takes_self=True))

    def width(self, tree: TokenTree) -> int:
        return 1

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        depth = int(tree.depths[candidates.frontier[0]])
        drawn = {}
        for row in known_rows(candidates):
            law = sharpened(candidates.law(row), self.temperature)
            drawn[row] = candidates.draw(choices, row, self.widths[depth], law=law, replacement=True)
        last: IntArray | None = NOTHING if depth + 1 == len(self.widths) else None
        return Growth(NOTHING, last, drawn)

    def forest_widths(self, forest: Forest) -> int:
        return 1

    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        drawn = laws.drawing(self.temperature, replacement=True)
        drawn.draw(np.repeat(known_nodes(candidates), self.widths[forest.layer]))
        return ForestGrowth(NOTHING, NOTHING if forest.layer + 1 == len(self.widths) else None, drawn)
