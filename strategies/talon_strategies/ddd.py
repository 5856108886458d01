"""EAGLE-2's tree with a depth that follows the drafter's confidence."""

from typing import Any

import attrs
import numpy as np
from attrs.validators import ge, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import as_written, searched
from talon_core.tree import TokenTree
from talon_core.tree_arrays import totals
from talon_strategies.drawing import NOTHING
from talon_strategies.eagle2 import Eagle2
from talon_strategies.options import numbers_of, positive_numbers

FIFTH_SEVENTH_NINTH: Any = "5;7;9"  # text, as users write it; the converter makes it numbers


def _layers(given: Any) -> Any:
    return numbers_of(given, int, "checked", "5;7;9")


@attrs.frozen
class DynamicDepth(Eagle2):
    """Drafts EAGLE-2's tree until its beam is unlikely (Dynamic Depth Decoding, arXiv 2409.00142, section 2).

    The beam is the `top_k` nodes of a layer that EAGLE-2 would draft from next. Where the sum of their path
    probabilities is below `threshold`, nothing more is drafted. As a test makes a GPU wait, the paper tests after some
    layers only. The defaults are its own (section 3.2): at most eleven layers, of which the fifth, seventh and ninth
    are tested; its threshold is -0.3 for the logarithm of the sum, and exp(-0.3) is 0.741.

    Attributes:
        budget: nodes sent to the target, the root included, at least 2.
        top_k: nodes expanded per layer, and candidates drawn from each, at least 1.
        depth: most expanded layers after the first, at least 1; the tree is up to `1 + depth` deep.
        checked: layers after which the beam is tested, counted from 1, one of them at most `depth`. As text, numbers
            with `;` between them.
        threshold: the least sum of the beam's path probabilities for which drafting goes on, in [0, 1].
    """

    name = "ddd"
    purpose = "trees by confidence"
    paper = "arXiv 2409.00142"
    depth: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(5, 10))
    checked: tuple[int, ...] = attrs.field(default=FIFTH_SEVENTH_NINTH, converter=_layers, validator=positive_numbers)
    threshold: float = attrs.field(default=0.741, validator=[number, ge(0), le(1)], metadata=searched(0.05, 0.95))

    def __attrs_post_init__(self) -> None:
        first = min(self.checked)
        if first > self.depth:
            raise ValueError(
                f"checked is {as_written(self.checked)}, and no layer of it is at most the depth, {self.depth}, so "
                f"that threshold would decide nothing; it must have one of 1 to {self.depth}, or depth must be at "
                f"least {first}"
            )

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        growth = super().grow(tree, candidates, choices)
        beam = candidates.path_logp.ravel()[growth.chosen[: self.top_k]]
        layer = int(tree.depths[candidates.frontier[0]]) + 1
        if layer in self.checked and totals(np.exp(beam)) < self.threshold:
            return Growth(growth.chosen, frontier=NOTHING)
        return growth

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        growth = super().grow_forest(forest, candidates)
        if forest.layer + 1 not in self.checked or growth.frontier is None:
            return growth
        beam = growth.chosen[growth.frontier - len(forest)]
        trees = candidates.trees_of(beam)
        likely = np.bincount(trees, np.exp(candidates.path_logp.take(beam)), forest.size) >= self.threshold
        return ForestGrowth(growth.chosen, growth.frontier[likely[trees]])
