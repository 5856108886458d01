"""TALON's confidence-aware tree."""

import math
from sys import maxsize

import attrs
import numpy as np
from attrs.validators import ge, gt, le, lt

from talon_core.basics.option_checks import number, whole_number
from talon_core.chains import Chains
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_core.tree import FloatArray
from talon_strategies.gate import relative_gate
from talon_strategies.pooled import Pool, PooledLayers


@attrs.frozen
class Talon(PooledLayers):
    """Keeps every candidate at least `mu` times as likely as its layer's best (TALON, arXiv 2601.07353, section 5.2).

    The first layer is the `top_k` best (their robust tree initialisation); every later one is what passes the gate,
    all parents pooled, scored by the probability of the path from the root; a layer that does not fit is cut to its
    best. What survives is drafted from next, until the tree is full: deep where the drafter is sure, wide where it
    is not. The paper scores the whole draft vocabulary; the best `budget - nodes` of each parent, which the default
    `width` asks for, give the same tree.

    Attributes:
        budget: nodes of the tree, the root included, at least 2; their N.
        top_k: size of the first layer, at least 1; their K.
        mu: the gate, in (0, 1]; the larger, the deeper and narrower the tree.
        least: the smallest path probability that is worth a node, in [0, 1); the tree ends where nothing reaches it,
            budget or not. 0 is the paper's algorithm. Where a node is not free to verify, as on a CPU, it saves what
            would hardly be accepted: this is ours.
    """

    name = "talon"
    purpose = "trees by confidence"
    paper = "arXiv 2601.07353"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 16, log=True))
    mu: float = attrs.field(default=0.03, validator=[number, gt(0), le(1)], metadata=searched(0.01, 0.6, log=True))
    least: float = attrs.field(default=0.0, validator=[number, ge(0), lt(1)], metadata=searched(0.0, 0.4))

    @property
    def floor(self) -> float:
        """The natural logarithm of `least`."""
        return math.log(self.least) if self.least else -math.inf

    def chains(self) -> Chains | None:
        """Of two nodes a tree is a chain of one token; larger ones may have branches.

        A subclass whose trees are others overrides this, too.
        """
        return Chains(maxsize, 1, (self.floor,), (math.inf,)) if self.budget == 2 else None

    def chain_came(self, logp: FloatArray, nodes: int) -> None:
        """Nothing is to be learnt of it."""

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        room = self.budget - nodes
        if layer == 0:
            return np.minimum(self.top_k, room), self.floor
        return room, np.maximum(relative_gate(pool.highest(), self.mu), self.floor)
