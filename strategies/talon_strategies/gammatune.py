"""Chains whose length follows what was accepted before."""

import math

import attrs
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number
from talon_core.searching import searched
from talon_strategies.stopping import PlannedChain


@attrs.define
class Learnt:
    """What is learnt of one text.

    Attributes:
        gamma: tokens that the next chain may have.
        average: the running average of accepted tokens.
    """

    gamma: int
    average: float


@attrs.frozen
class GammaTune(PlannedChain):
    """Drafts two tokens more after full acceptance, else a running average (GammaTune, arXiv 2504.00030, algorithm 1).

    After a round with A of d drafted tokens accepted, the next chain has min(A + `growth`, `length`) tokens if A = d,
    and the average stays as it was. Else the average becomes (1 - `weight`) average + `weight` A, within [1, `length`],
    and the next chain has as many tokens, rounded up. The rule is known to us from others' notes. Ours are that
    A + `growth` is cut at `length`, that the average begins at `start`, that d counts the tokens that were drafted
    where the text's end or the drafter allowed fewer, and that a round without any changes nothing.

    Attributes:
        length: most drafted tokens, at least 1; one draft pass each.
        start: drafted tokens of the first round, at least 1; `length` if that is less.
        weight: of the last round in the average, in (0, 1].
        growth: how many more tokens than were accepted are drafted after full acceptance, at least 0.
    """

    name = "gammatune"
    paper = "arXiv 2504.00030"
    length: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(4, 20))
    start: int = attrs.field(default=3, validator=[whole_number, ge(1)])
    weight: float = attrs.field(default=0.3, validator=[number, gt(0), le(1)], metadata=searched(0.05, 0.8))
    growth: int = attrs.field(default=2, validator=[whole_number, ge(0)], metadata=searched(1, 4))
    learnt: Learnt = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(lambda self: Learnt(self.start, self.start), takes_self=True),
    )

    @property
    def planned(self) -> int:
        return self.learnt.gamma

    def learn(self, drafted: int, accepted: int) -> None:
        if accepted == drafted:
            self.learnt.gamma = min(accepted + self.growth, self.length)
            return
        average = self.learnt.average
        average += self.weight * (accepted - average)  # as one term, so that rounding lifts no whole number
        self.learnt.average = min(max(average, 1.0), float(self.length))
        self.learnt.gamma = math.ceil(self.learnt.average)
