"""Upper confidence bounds: which of several arms is played next, by what each of them has brought."""

from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt
from typing import NamedTuple

import attrs

DELTA = 0.1
"""UCBSpec's confidence parameter."""


@attrs.define
class Arm:
    """What one arm has brought.

    Attributes:
        rounds: in which it was played.
        gain: added up.
        gain_squared: the squares of the gains, added up.
        largest: the largest gain of a round.
    """

    rounds: int = 0
    gain: float = 0.0
    gain_squared: float = 0.0
    largest: float = 0.0

    def brought(self, gain: float) -> None:
        """It was played, and brought so much, at least 0."""
        self.rounds += 1
        self.gain += gain
        self.gain_squared += gain * gain
        self.largest = max(self.largest, gain)

    @property
    def mean(self) -> float:
        """Gain of a round."""
        return self.gain / self.rounds

    @property
    def variance(self) -> float:
        """Of the gains."""
        return max(self.gain_squared / self.rounds - self.mean**2, 0.0)


class Played(NamedTuple):
    """What a bound looks at.

    Attributes:
        arms: how many there are.
        rounds: of all of them, at least 1.
        own: rounds of this arm, at least 1.
        variance: of its rewards, which are in [0, 1].
    """

    arms: int
    rounds: int
    own: int
    variance: float


def ucb1(played: Played) -> float:
    """UCB1 (Auer et al. 2002, "Finite-time Analysis of the Multiarmed Bandit Problem"): sqrt(2 ln t / n)."""
    return sqrt(2.0 * log(played.rounds) / played.own)


def tuned(played: Played) -> float:
    """UCB1-Tuned, of the same paper: sqrt(ln t / n min(1/4, V + sqrt(2 ln t / n))), V the variance of the rewards."""
    return sqrt(log(played.rounds) / played.own * min(0.25, played.variance + ucb1(played)))


def ucbspec(played: Played) -> float:
    """UCBSpec (BanditSpec, arXiv 2505.15141, equation 6) by their L, the range of the rewards; delta is ours.

    cr = L / 2 sqrt((1 + n) / n^2 (1 + 2 ln(K t^2 sqrt(1 + n) / delta))), with K arms, t rounds, n of them this arm's.
    """
    own = played.own
    evidence = 1.0 + 2.0 * log(played.arms * played.rounds**2 * sqrt(1.0 + own) / DELTA)
    return 0.5 * sqrt((1.0 + own) / own**2 * evidence)


BOUNDS: Mapping[str, Callable[[Played], float]] = {"tuned": tuned, "ucb1": ucb1, "ucbspec": ucbspec}
"""By name, how far above its mean an arm's reward may be, in units of the rewards' range."""


def next_arm(arms: Sequence[Arm], costs: Sequence[float], bound: str, explore: float) -> int:
    """The arm to play: each once, in order, and then the one of the highest bound, the first among equals.

    An arm's reward is its mean gain by its mean cost, and rewards go from 0 to the largest gain of a round by that.

    Args:
        arms: what they have brought, at least one.
        costs: of a round of each, in the mean, in one unit, more than 0; of arms that were not played, anything.
        bound: a key of `BOUNDS`.
        explore: the bound is multiplied with it.
    """
    for place, arm in enumerate(arms):
        if not arm.rounds:
            return place
    rounds = sum(arm.rounds for arm in arms)
    largest = max(arm.largest / cost for arm, cost in zip(arms, costs, strict=True)) or 1.0

    def upper(place: int) -> float:
        arm, unit = arms[place], largest * costs[place]
        played = Played(len(arms), rounds, arm.rounds, arm.variance / (unit * unit))
        return arm.mean / unit + explore * BOUNDS[bound](played)

    return max(range(len(arms)), key=upper)
