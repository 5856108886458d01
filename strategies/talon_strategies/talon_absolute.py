"""TALON with a fixed threshold in place of the relative gate."""

import math

import attrs
import numpy as np
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_strategies.pooled import Pool, PooledLayers


@attrs.frozen
class TalonAbsolute(PooledLayers):
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

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        room = self.budget - nodes
        if layer == 0:
            return np.minimum(self.top_k, room), -math.inf
        return room, math.log(self.threshold)
