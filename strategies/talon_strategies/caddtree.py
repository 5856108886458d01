"""CaDDTree: as many of the likeliest paths as make the most tokens a second."""

import attrs

from talon_core.forest import Count
from talon_core.tree import FloatArray, IntArray
from talon_strategies.cost_aware import rates
from talon_strategies.cost_forests import CostAwareForests


@attrs.frozen
class CaDDTree(CostAwareForests):
    """Adds the next likeliest path while the expected tokens a second rise (CaDDTree, arXiv 2606.01813).

    With n drafted nodes these are theta(n) = (1 + Phi(n)) / (C_d + C_v(n)), where Phi(n) are the path probabilities of
    the n likeliest, C_d is the drafting and C_v(n) the target's pass over them and the root at this length of the text.
    The paper fits C_v to be convex over n; then theta has one maximum (their theorem 1), and they stop where it no
    longer rises. Here C_v
    is what the costs say, which rises but may not be convex, and the fewest nodes of the highest theta are taken: of
    convex costs the same. C_d adds up the layers, of which the paper's drafter has one; how many are worth their time,
    and what is done as long as nothing is known of the costs, see `CostAware`, is ours.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2; theirs is 1,024 and the root.
        depth: most layers, at least 1; one draft pass each.
    """

    name = "caddtree"
    paper = "arXiv 2606.01813"

    def worth(self, prob: FloatArray, seconds: FloatArray) -> Count:
        most: IntArray = rates(prob, seconds).argmax(axis=-1)
        return most
