"""TALON with any number of top-K layers before the gate."""

import math

import attrs
import numpy as np
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_strategies.gate import relative_gate
from talon_strategies.pooled import Pool, PooledLayers


@attrs.frozen
class TalonTopkLayers(PooledLayers):
    """Starts with `layers` layers of the `top_k` best each, all parents pooled.

    TALON's ablation of the number of top-K layers (arXiv 2601.07353; our `layers` is its k). With `layers=1` it is
    `talon`, with `layers=0` it is `talon-gate-only`.

    Attributes:
        budget: nodes of the tree, the root included, at least 2; their N.
        top_k: size of a top-K layer, at least 1; their K.
        mu: in later layers a candidate joins if it is at least `mu` times as likely as its layer's best; in (0, 1].
        layers: number of top-K layers, 0 to 3.
    """

    name = "talon-topk-layers"
    purpose = "ablations of talon"
    paper = "arXiv 2601.07353"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 16, log=True))
    mu: float = attrs.field(default=0.03, validator=[number, gt(0), le(1)], metadata=searched(0.01, 0.6, log=True))
    layers: int = attrs.field(default=2, validator=[whole_number, ge(0), le(3)], metadata=searched(0, 3))

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        room = self.budget - nodes
        if layer < self.layers:
            return np.minimum(self.top_k, room), -math.inf
        return room, relative_gate(pool.highest(), self.mu)
