"""What is learnt of how likely draws are accepted."""

from math import exp, inf, log

import attrs
import numpy as np

from talon_core.tree import FloatArray
from talon_strategies.calibration import Calibration, raw
from talon_strategies.drawing import AGREEMENT
from talon_strategies.following import LATEST

UNSEEN = ((0.5, 0.5),)
"""How likely a node's best token and a draw after it are taken to be accepted before any node was seen."""


@attrs.define(eq=False)
class Drawing:
    """What is known of a text's draws.

    Attributes:
        temperature: of the drafter's laws that are drawn from.
        chained: likewise, in chains of draws.
        calibration: of how likely a draw is accepted.
        seen: how likely the best token, and a draw, were taken to be accepted after the latest nodes of chains, shape
            `(nodes, 2)`.
    """

    temperature: float = 1.0
    chained: float = 1.0
    calibration: Calibration = attrs.field(factory=Calibration)
    seen: FloatArray = attrs.field(factory=lambda: np.array(UNSEEN))

    @property
    def mean(self) -> float:
        """How likely a draw is accepted."""
        return float(self.seen[:, 1].mean())

    def expected(self, logp: FloatArray) -> FloatArray:
        """Log-probabilities that a draw is accepted, before they are calibrated, shape `(layers,)`.

        Args:
            logp: the drafter's log-probabilities of its candidates, shape `(layers, width)`.
        """
        likely: FloatArray = np.log(expected_of_draws(np.exp(logp))[:, 0])
        return likely

    def saw(self, best: FloatArray, draws: FloatArray) -> None:
        """Take note of how likely the best token, and a draw, are accepted after some nodes, shape `(nodes,)` each."""
        self.seen = np.concatenate([self.seen, np.column_stack([best, draws])])[-LATEST:]

    def gains(self, price: float) -> tuple[float, float]:
        """What the best token of a node, and a draw, bring above a price, in tokens, each where it is worth that."""
        best, draws = np.maximum(self.seen - price, 0.0).mean(axis=0).tolist()
        return best, draws

    def level(self, price: float) -> float:
        """The log-probability of a node's likeliest candidate with which a draw is worth a price, in tokens."""
        accepted = raw(price, self.calibration.line)
        prob = (exp(min(accepted, 0.0)) - AGREEMENT[0]) / AGREEMENT[1]
        return inf if prob > 1.0 or accepted > 0.0 else log(prob) if prob > 0.0 else -inf


def expected_of_draws(prob: FloatArray) -> FloatArray:
    """How likely a draw is accepted where the 0, 1, ... best are fixed, before anything is learnt.

    Args:
        prob: the drafter's probabilities of the best tokens of some nodes, falling, shape `(rows, width)`.

    Returns:
        Shape `(rows, width)`, more than 0.
    """
    rest = 1.0 - np.cumsum(prob, axis=1) + prob
    expected: FloatArray = AGREEMENT[0] * rest + AGREEMENT[1] * prob
    return np.clip(expected, 1e-6, 1.0)
