"""BASTION: the next likeliest path while it is worth what it adds to a roofline."""

import attrs
import numpy as np

from talon_core.forest import Count
from talon_core.tree import FloatArray, IntArray
from talon_strategies.cost_forests import CostAwareForests


@attrs.frozen
class Bastion(CostAwareForests):
    """Adds the next likeliest node while it brings more than its time elsewhere (BASTION, arXiv 2605.29727, section 3).

    Of a tree of n nodes, the root included, whose path probabilities add up to Phi, the next one, of path probability
    rho, joins while rho (T_draft + T_other + C(n)) > Phi (C(n + 1) - C(n)). That is published, and that the target's
    pass takes C(n) by a roofline of four fitted coefficients, the larger of a memory-bound and a compute-bound side.
    In the paper these are the bytes and the operations of known models on known GPUs, each scaled and shifted. Ours
    are straight lines, C(n) = max(a + b n, c + d n), fitted in each round to what the costs say at the length of the
    text, see `rooflines`. T_other is ours, too: what the costs say of a round and of its layers besides the passes
    (`Costs.besides`, `Costs.beside_layer`); the paper measures it. So is how T_draft adds up layers, of which its
    drafter has one, and what is done as long as nothing is known of the costs, see `CostAware`. Its release sends 32
    nodes or more.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2; in their release 8,192.
        depth: most layers, at least 1; one draft pass each.
    """

    name = "bastion"
    paper = "arXiv 2605.29727"
    all_counts = True

    def worth(self, prob: FloatArray, seconds: FloatArray) -> Count:
        phi = np.empty(prob.shape)  # of the tree that each node would join
        phi[..., :1], phi[..., 1:] = 1.0, prob[..., :-1]
        joins = prob * seconds[..., :-1] > phi.cumsum(axis=-1) * np.diff(seconds)
        joined: IntArray = np.logical_and.accumulate(joins, axis=-1).sum(axis=-1)
        return joined

    def curves(self, sizes: IntArray, seconds: FloatArray) -> FloatArray:
        a, b, c, d = (each[:, None] for each in rooflines(sizes, seconds))
        nodes = np.arange(1, self.budget + 1)
        roofs: FloatArray = np.maximum(a + b * nodes, c + d * nodes)
        return roofs


def rooflines(sizes: IntArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The rooflines max(a + b n, c + d n) of the least squares, among those of which each line is fitted to one side.

    Args:
        sizes: n, rising, shape `(points,)`.
        seconds: at these, shape `(rooflines, points)`.

    Returns:
        a, b, c and d, shape `(rooflines,)` each. Each side has two points or more; where there are too few, both are
        one line.
    """
    points, n = len(sizes), sizes.astype(np.float64)
    a, b = _lines(n, seconds)
    c, d = (part[:, ::-1] for part in _lines(n[::-1], seconds[:, ::-1]))
    first = np.append(np.arange(1, points - 2), points - 1)  # where the first line ends; at last, one line for all
    second = np.append(np.arange(2, points - 1), 0)  # where the second line begins
    low = a[:, first, None] + b[:, first, None] * n  # (rooflines, splits, points)
    high = c[:, second, None] + d[:, second, None] * n
    best = np.square(np.maximum(low, high) - seconds[:, None]).sum(axis=-1).argmin(axis=-1)
    each, end, begin = np.arange(len(seconds)), first[best], second[best]
    return a[each, end], b[each, end], c[each, begin], d[each, begin]


def _lines(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Offsets and slopes of the straight lines by least squares through the first 1, 2, ... points.

    Args:
        x: shape `(points,)`.
        y: shape `(rooflines, points)`.

    Returns:
        Of the shape of `y` each.
    """
    count = np.arange(1, len(x) + 1)
    of_x, of_y, of_xx, of_xy = (np.cumsum(part, axis=-1) for part in (x, y, x * x, x * y))
    spread = count * of_xx - of_x**2
    slope = np.divide(count * of_xy - of_x * of_y, spread, out=np.zeros(y.shape), where=spread > 0)
    return (of_y - slope * of_x) / count, slope
