"""TALON with the last step's probability in place of the path's."""

import math

import attrs
import numpy as np
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_core.tree import FloatArray
from talon_strategies.gate import relative_gate
from talon_strategies.pooled import Pool, PooledLayers


@attrs.frozen
class TalonLocal(PooledLayers):
    """Scores a candidate by its probability after its parent, forgetting how likely the parent was.

    An ablation of ours, to be held against `talon` (arXiv 2601.07353, section 5.2): the gate and the cut to the
    budget both use the conditional probability, so a sure step on an unlikely path counts as much as on a likely one.

    Attributes:
        budget: nodes of the tree, the root included, at least 2.
        top_k: size of the first layer, at least 1.
        mu: a candidate joins if it is at least `mu` times as likely after its parent as its layer's best; in (0, 1].
    """

    name = "talon-local"
    purpose = "ablations of talon"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 16, log=True))
    mu: float = attrs.field(default=0.03, validator=[number, gt(0), le(1)], metadata=searched(0.01, 0.6, log=True))

    def scores(self, pool: Pool) -> FloatArray:
        return pool.logp

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        room = self.budget - nodes
        if layer == 0:
            return np.minimum(self.top_k, room), -math.inf
        return room, relative_gate(pool.highest(pool.logp), self.mu)
