"""Chains: no branching at all."""

import math
from sys import maxsize

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.chains import Chains
from talon_core.forest import Count, Level
from talon_core.searching import searched
from talon_core.tree import FloatArray
from talon_strategies.options import plus_one
from talon_strategies.pooled import Pool, PooledLayers


@attrs.frozen
class Chain(PooledLayers):
    """Drafts the best next token `length` times in a row (arXiv 2211.17192, section 2; `length` is their gamma).

    Attributes:
        length: drafted tokens, at least 1; one draft pass each.
    """

    name = "chain"
    purpose = "fixed shapes"
    paper = "arXiv 2211.17192"
    length: int = attrs.field(default=5, validator=[whole_number, ge(1)], metadata=searched(1, 12))
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: plus_one(self.length), takes_self=True))

    def wanted(self, nodes: Count) -> Count:
        return 1

    def chains(self) -> Chains:
        everything = (-math.inf,) * self.length
        return Chains(maxsize, 1, everything, everything)

    def chain_came(self, logp: FloatArray, nodes: int) -> None:
        """Nothing is to be learnt of it."""

    def cut(self, layer: int, nodes: Count, pool: Pool) -> tuple[Count, Level]:
        return 1, -math.inf
