"""Chains that end where the drafter's law is flat."""

import attrs
import numpy as np
from attrs.validators import ge, gt
from numpy.typing import NDArray

from talon_core.basics.option_checks import number, whole_number
from talon_core.searching import searched
from talon_core.tree import IntArray
from talon_strategies.entropy import OFFERED, entropies_of
from talon_strategies.pooled import Pool
from talon_strategies.stopping import SteadyChain


@attrs.frozen
class Svip(SteadyChain):
    """Ends a chain where sqrt(`factor` H(q)) is more than `h` (SVIP, arXiv 2411.18462, section 2.2).

    H(q) is the entropy, in nats, of the law that a token was taken from, and the test comes after the token has joined.
    The default numbers are those of the authors' code: the chain ends where H(q) > 0.6. Here H(q) is that of the 16
    best candidates, with all other tokens taken for one: a lower bound, so that chains can be longer than the paper's.
    Of 49,152 tokens, the best with 0.9 and the others alike, it is 0.325 in the place of 1.405.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        h: the threshold, at least 0; the larger, the longer the chain.
        factor: what the entropy is multiplied with, more than 0.
    """

    name = "svip"
    paper = "arXiv 2411.18462"
    offered = OFFERED
    length: int = attrs.field(default=40, validator=[whole_number, ge(1)], metadata=searched(4, 40, log=True))
    h: float = attrs.field(default=0.3, validator=[number, ge(0)], metadata=searched(0.1, 0.7))
    factor: float = attrs.field(default=0.15, validator=[number, gt(0)])

    def ends(self, nodes: IntArray, pool: Pool) -> NDArray[np.bool_]:
        flat: NDArray[np.bool_] = np.sqrt(self.factor * entropies_of(pool.logp)) > self.h
        return flat
