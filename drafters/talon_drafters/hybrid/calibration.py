"""How far a look-up is trusted: a logistic regression on the log-odds of its best guess, one for each text."""

from collections.abc import Mapping

from talon_core.basics.logistic import log_odds, sigmoid

# Fitted together by the likelihood of the mixture, see `HybridSpec`.
SLOPE, INTERCEPT = 1.2, -0.1
BESIDE_INTERCEPT, BESIDE_MODEL = -1.1, -0.55

RATE, KEPT = 0.2, 0.95
"""Of a gradient step, and what is left of what was learned before it: about the last twenty guesses count."""

_CUT = 1e-4  # probabilities nearer to 0 or 1 have no more evidence than this


class Trust:
    """What is known of one look-up in one text; it knows nothing but the text.

    Attributes:
        shift: `s` of `HybridSpec`.
    """

    def __init__(self) -> None:
        self.shift = 0.0

    def comes(self, share: float) -> float:
        """The probability that a look-up's best token comes, from its share alone."""
        return sigmoid(SLOPE * log_odds(share, _CUT) + INTERCEPT + self.shift)

    def learn(self, shares: Mapping[int, float], token: int) -> None:
        """A token of the text, and what was looked up before it came."""
        if shares:
            best = max(shares, key=shares.__getitem__)
            self.shift = KEPT * self.shift + RATE * ((best == token) - self.comes(shares[best]))

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
        odds = SLOPE * log_odds(max(shares.values()), _CUT) + BESIDE_MODEL * log_odds(model_best, _CUT)
        return sigmoid(odds + BESIDE_INTERCEPT + self.shift)
