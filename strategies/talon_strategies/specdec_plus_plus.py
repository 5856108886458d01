"""Chains that end where one of their tokens will probably be rejected."""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from attrs.validators import ge, le
from numpy.typing import NDArray

from talon_core.basics.option_checks import number, whole_number
from talon_core.candidates import Candidates
from talon_core.forest_planner import AskedLayer, ForestPlanner, TreePlan
from talon_core.searching import searched
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_strategies.acceptance_head import AcceptanceHead, given_head
from talon_strategies.entropy import OFFERED, entropies_of, entropy_offered
from talon_strategies.pooled import Pool
from talon_strategies.stopping import PlainChain, StoppingChain, plain_chain

FEATURES = ("probability", "second", "entropy", "depth")
"""What the head looks at, in this order: the token's probability after its parent; that of the second best candidate
there, 0 if there is none; the entropy of what is offered there, in nats, see `talon_strategies.entropy`; the token's
depth, 1 for the first one."""


def _head(given: Any) -> Any:
    return given_head(given, "head", FEATURES)


@attrs.define
class Survival:
    """What a head has predicted of the chain that is being drafted.

    Attributes:
        prob: that all of its tokens are accepted.
    """

    prob: float = 1.0


@attrs.frozen
class SpecDecPlusPlus(StoppingChain, ForestPlanner):  # pyright: ignore[reportIncompatibleVariableOverride]  # of `budget`
    """Ends a chain where a token of it is rejected with probability above `h` (SpecDec++, arXiv 2405.19715, section 4).

    That probability is 1 - a_1 a_2 ... a_n, the a_i being the predicted probabilities that each token is accepted if
    those before it are; the token with which it comes above `h` still joins. The paper predicts them with a head on the
    draft model's hidden states, which no policy sees. Here a `head` looks at probabilities, the entropy and the depth;
    without one, a_i is the drafter's own probability of the token. These inputs and the defaults are ours.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        h: the threshold, in [0, 1]; the larger, the longer the chain.
        head: a safetensors file with a trained head, see `talon_strategies.acceptance_head`; none for the drafter's
            own probabilities.
    """

    name = "specdec-plus-plus"
    paper = "arXiv 2405.19715"
    offered = OFFERED
    length: int = attrs.field(default=20, validator=[whole_number, ge(1)], metadata=searched(4, 40, log=True))
    h: float = attrs.field(default=0.7, validator=[number, ge(0), le(1)], metadata=searched(0.1, 0.95))
    head: AcceptanceHead | None = attrs.field(default=None, converter=_head)
    predicted: Survival | None = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(lambda self: None if self.head is None else Survival(), takes_self=True),
    )

    def plan(self) -> TreePlan:
        if self.head is None:
            return TreePlan(LikelyChain(self.length, self.offered, h=self.h))
        return plain_chain(self.length, self.offered)

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        if self.head is None:
            return None
        prob = 1.0
        for depth, layer in enumerate(layers, 1):
            prob *= _accepted(self.head, layer.logp[0], layer.measured(entropies_of).item(), depth)
            if 1.0 - prob > self.h:
                return depth
        return None

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return 1.0 - self._survival(len(tree), candidates) > self.h

    def _survival(self, depth: int, candidates: Candidates) -> float:
        """The predicted probability that the chain is accepted together with the best candidate, its `depth`-th token.

        Candidates of layers above are gone, so what a head has said of them is kept while the chain is drafted.
        """
        if self.head is None or self.predicted is None:
            return float(np.exp(candidates.path_logp[0, 0]))
        before = self.predicted.prob if depth > 1 else 1.0
        entropy = entropy_offered(candidates)
        self.predicted.prob = before * _accepted(self.head, candidates.logp[0], entropy, depth)
        return self.predicted.prob


def _accepted(head: AcceptanceHead, logp: FloatArray, entropy: float, depth: int) -> float:
    """What a head predicts of the best candidate of a row, `logp` of shape `(width,)`, if those before are accepted."""
    first, second = np.exp(np.append(logp, -np.inf)[:2])
    return float(head.accepted((first, second, entropy, depth)))


@attrs.frozen
class LikelyChain(PlainChain):
    """The chain of a round by the drafter's own probabilities.

    Attributes:
        length: drafted tokens at most, at least 1.
        h: as of the policy.
    """

    name = "likely-chain"
    h: float = attrs.field(kw_only=True)

    def ends(self, nodes: IntArray, pool: Pool) -> NDArray[np.bool_]:
        unlikely: NDArray[np.bool_] = 1.0 - np.exp(pool.path_logp[:, 0]) > self.h
        return super().ends(nodes, pool) | unlikely
