"""TALON with a fixed threshold in place of the relative gate."""

import math

import attrs
from attrs.validators import ge, gt, le

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, TreePolicy
from talon_core.searching import searched
from talon_core.tree import TokenTree
from talon_strategies.options import number, whole_number


@attrs.frozen
class TalonAbsolute(TreePolicy):
    """Keeps every candidate whose path has at least probability `threshold`, whatever its layer's best.

    An ablation of ours, to be held against `talon` (arXiv 2601.07353, section 5.2): path probabilities fall with
    depth, so the drafting ends by itself once no path reaches the threshold, perhaps long before the budget is spent.

    Attributes:
        budget: nodes of the tree, the root included, at least 2.
        top_k: size of the first layer, which is not gated, at least 1.
        threshold: the least path probability from the second layer on, in (0, 1].
    """

    name = "talon-absolute"
    purpose = "ablations of talon"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 16, log=True))
    threshold: float = attrs.field(
        default=0.03, validator=[number, gt(0), le(1)], metadata=searched(0.003, 0.3, log=True)
    )

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        room = self.budget - len(tree)
        if len(tree) == 1:
            return Growth(candidates.best(min(self.top_k, room)))
        return Growth(candidates.best(room, at_least=math.log(self.threshold)))
