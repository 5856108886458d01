"""CaDDTree: as many of the likeliest paths as make the most tokens a second."""

import attrs
import numpy as np

from talon_core.basics.option_checks import yes_or_no
from talon_core.forest import Count
from talon_core.tree import FloatArray, IntArray
from talon_strategies.convex import convex_fit
from talon_strategies.cost_aware import rates
from talon_strategies.cost_forests import CostAwareForests


@attrs.frozen
class CaDDTree(CostAwareForests):
    """Adds the next likeliest path while the expected tokens a second rise (CaDDTree, arXiv 2606.01813).

    With n drafted nodes these are theta(n) = (1 + Phi(n)) / (C_d + C_v(n)), where Phi(n) are the path probabilities of
    the n likeliest, C_d is the drafting and C_v(n) the target's pass over them and the root at this length of the text.
    The paper fits C_v to be convex over n, by least squares with first and second differences of at least 0; then theta
    has one maximum (their theorem 1; of their sections we know no number), and they stop where it no longer rises.
    `convex` does so. By default C_v is what the costs say, which rises but may not be convex, and the fewest nodes of
    the highest theta are taken: of convex costs the same. C_d adds up the layers, of which the paper's drafter has one;
    how many are worth their time, and what is done as long as nothing is known of the costs, see `CostAware`, is ours.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2; theirs is 1,024 and the root.
        depth: most layers, at least 1; one draft pass each.
        convex: fit C_v as the paper does, anew for each price that is asked for.
    """

    name = "caddtree"
    paper = "arXiv 2606.01813"
    convex: bool = attrs.field(default=False, validator=yes_or_no)

    def worth(self, prob: FloatArray, seconds: FloatArray) -> Count:
        most: IntArray = rates(prob, seconds).argmax(axis=-1)
        return most

    def curves(self, sizes: IntArray, seconds: FloatArray) -> FloatArray:
        if self.convex:
            seconds = np.array([convex_fit(sizes, one) for one in seconds]).reshape(seconds.shape)
        return super().curves(sizes, seconds)
