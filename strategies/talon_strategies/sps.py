"""Chains of the length that classic speculative sampling gains most with."""

import attrs
import numpy as np
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.costs import Costs, MeasuredCosts
from talon_core.forest_planner import RoundCounts
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.searching import searched
from talon_strategies.cost_aware import rates
from talon_strategies.prices import layer_price, verify_price
from talon_strategies.stopping import PlannedChain


@attrs.define
class Tested:
    """What is learnt of one text, and what its passes take.

    Attributes:
        accepted: drafted tokens that were.
        rejected: chains that were not accepted whole; the token behind the accepted ones was tested, and no other.
        costs: what passes take.
        context: committed tokens.
        planned: tokens that the next chain may have; 0 until somebody asks.
    """

    accepted: int = 0
    rejected: int = 0
    costs: Costs = attrs.field(factory=MeasuredCosts)
    context: int = 1
    planned: int = 0


@attrs.frozen
class Sps(PlannedChain):
    """Drafts as many tokens as make the most tokens a second at the text's acceptance rate (arXiv 2211.17192, 3.5).

    Leviathan et al. maximise their expected improvement (theorem 3.8) over gamma, the length of the chain,

        (1 - a^(gamma + 1)) / ((1 - a) (gamma c + 1)),

    with a the rate at which drafted tokens are accepted, each independently of the others, and c the time of a draft
    pass in passes of the target, of which one over gamma + 1 nodes takes no longer than one over a single node. Here
    the time is gamma draft passes and a pass over gamma + 1 nodes, both as the costs say at this length of the text;
    so the paper's formula is the case where nodes are free. As long as nothing is known of the costs, a draft pass is
    taken to cost a tenth, and a node a twentieth, of a pass over one node. The shortest of the best is taken, from 1 to
    `length`: what is not drafted could never show that drafting pays.

    How a is found out is ours, too. The accepted tokens of this text are counted, and the tested ones: those, and one
    for each chain that was not accepted whole. To both is added what `weight` tested tokens bring at the rate `start`,
    which is the mean of a Beta distribution before and after.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        start: a before anything was tested, in [0, 1].
        weight: how many tested tokens that counts as, more than 0.
    """

    name = "sps"
    paper = "arXiv 2211.17192"
    length: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(4, 20))
    start: float = attrs.field(default=0.7, validator=[number, ge(0), le(1)], metadata=searched(0.3, 0.95))
    weight: float = attrs.field(default=5.0, validator=[number, gt(0)], metadata=searched(1, 50, log=True))
    tested: Tested = attrs.field(init=False, eq=False, repr=False, factory=Tested)

    @property
    def rate(self) -> float:
        """The rate at which drafted tokens are accepted, as far as it is known, in [0, 1]."""
        accepted = self.weight * self.start + self.tested.accepted
        return accepted / (self.weight + self.tested.accepted + self.tested.rejected)

    @property
    def planned(self) -> int:
        if not self.tested.planned:
            self.tested.planned = self._best_length()
        return self.tested.planned

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        one = super().begin(sequence)
        assert isinstance(one, Sps)
        one.tested.costs, one.tested.context = sequence.costs, sequence.prompt_length
        return one

    def learn(self, drafted: int, accepted: int) -> None:
        self.tested.accepted += accepted
        self.tested.rejected += accepted < drafted

    def observe_counts(self, counts: RoundCounts) -> None:
        super().observe_counts(counts)
        self.tested.context, self.tested.planned = counts.context + counts.new, 0

    def _best_length(self) -> int:
        costs, context = self.tested.costs, self.tested.context
        gamma = np.arange(1.0 + self.length)
        verifying = [verify_price(costs, 1 + drafted, context) for drafted in range(1 + self.length)]
        seconds = np.array(verifying) + gamma * layer_price(costs, 1, self.offered, context)
        return 1 + int(rates(self.rate ** gamma[1:], seconds)[1:].argmax())
