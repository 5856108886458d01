"""How far a look-up is trusted: a logistic regression on the log-odds of its best guess, one for each text."""

from collections.abc import Mapping

import attrs

from talon_core.basics.logistic import log_odds, sigmoid

_CUT = 1e-4  # probabilities nearer to 0 or 1 have no more evidence than this


@attrs.frozen
class Constants:
    """What the mixture begins from and how it learns, see `HybridSpec`; `talon_drafters.hybrid.fitting` fits them.

    Attributes:
        slope: of the log-odds of the look-up's best token.
        intercept: where no model says anything.
        beside_intercept: where one does.
        beside_model: of the log-odds of the models' best token.
        rate: of a gradient step.
        kept: what is left of what was learned before it.
        slope_rate: of a gradient step of the slope.
    """

    slope: float = 1.2
    intercept: float = -0.1
    beside_intercept: float = -1.1
    beside_model: float = -0.55
    rate: float = 0.2
    kept: float = 0.95
    slope_rate: float = 0.05


FITTED = Constants()


class Trust:
    """What is known of one look-up in one text; it knows nothing but the text.

    Args:
        constants: what it begins from, and how it learns.

    Attributes:
        shift: `s` of `HybridSpec`.
        turn: `u`, what the slope has learned.
    """

    def __init__(self, constants: Constants = FITTED) -> None:
        self.shift = 0.0
        self.turn = 0.0
        self._constants = constants

    def comes(self, share: float) -> float:
        """The probability that a look-up's best token comes, from its share alone."""
        return sigmoid(self._slope * log_odds(share, _CUT) + self._constants.intercept + self.shift)

    @property
    def _slope(self) -> float:
        return max(self._constants.slope + self.turn, 0.0)

    def learn(self, share: float, came: bool) -> None:
        """A token of the text: what the look-up gave to its best guess before, more than 0, and whether it came."""
        constants = self._constants
        wrong = came - self.comes(share)
        self.shift = constants.kept * self.shift + constants.rate * wrong
        self.turn = constants.kept * self.turn + constants.slope_rate * wrong * log_odds(share, _CUT)

    def alone(self, shares: Mapping[int, float]) -> float:
        """How much of the law is the look-up's where no model says anything; `shares` are not empty."""
        best = max(shares.values())
        return min(1.0, self.comes(best) * sum(shares.values()) / best)

    def beside(self, shares: Mapping[int, float], model_best: float) -> float:
        """How much of the law is the look-up's, in (0, 1).

        Args:
            shares: what was found, not empty.
            model_best: the greatest probability that the models give to any token.
        """
        constants = self._constants
        odds = self._slope * log_odds(max(shares.values()), _CUT) + constants.beside_model * log_odds(model_best, _CUT)
        return sigmoid(odds + constants.beside_intercept + self.shift)
