"""TALON without its first top-K layer."""

import attrs
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_strategies.gate import relative_gate
from talon_strategies.pooled import Pool, PooledLayers


@attrs.frozen
class TalonGateOnly(PooledLayers):
    """Gates the first layer as well (TALON, arXiv 2601.07353, the ablation with no top-K layer).

    Attributes:
        budget: nodes of the tree, the root included, at least 2; their N.
        mu: a candidate joins if it is at least `mu` times as likely as its layer's best; in (0, 1].
    """

    name = "talon-gate-only"
    purpose = "ablations of talon"
    paper = "arXiv 2601.07353"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    mu: float = attrs.field(default=0.03, validator=[number, gt(0), le(1)], metadata=searched(0.01, 0.6, log=True))

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        return self.budget - nodes, relative_gate(pool.highest(), self.mu)
