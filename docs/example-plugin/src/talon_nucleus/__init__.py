"""A tree policy that keeps the nucleus of each layer."""

import attrs
import numpy as np
from attrs.validators import ge, gt, le

from talon_core import Candidates, Choices, Growth, TokenTree, TreePolicy, hookimpl


@attrs.frozen
class Nucleus(TreePolicy):
    """Keeps the fewest candidates that together hold `share` of the layer's probability.

    This is top-p sampling's rule (Holtzman et al., arXiv 1904.09751) for whole layers of a tree: few candidates join
    where the drafter is sure, many where it is not.

    Attributes:
        budget: nodes of the tree, the root included, at least 2.
        share: how much of the layer's probability is kept, in (0, 1].
    """

    name = "nucleus"
    budget: int = attrs.field(default=16, validator=ge(2))
    share: float = attrs.field(default=0.6, validator=[gt(0), le(1)])

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        best = candidates.best(self.budget - len(tree))  # (chosen,), best first
        prob = np.exp(candidates.path_logp.ravel()[best])
        layer = np.exp(tree.path_logp[candidates.frontier]).sum()
        return Growth(best[np.cumsum(prob) - prob < self.share * layer])


@hookimpl
def talon_policies() -> list[type[TreePolicy]]:
    return [Nucleus]
