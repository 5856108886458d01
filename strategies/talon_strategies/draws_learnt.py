"""What is learnt of how likely draws are accepted."""

from math import exp, inf, log

import attrs
import numpy as np

from talon_core.tree import FloatArray
from talon_strategies.calibration import Calibration, raw
from talon_strategies.drawing import AGREEMENT
from talon_strategies.following import LATEST

UNSEEN = (0.5,)
"""How likely a draw is taken to be accepted before any node was seen."""


@attrs.define(eq=False)
class Drawing:
    """What is known of a text's draws.

    Attributes:
        temperature: of the drafter's laws that are drawn from.
        calibration: of how likely a draw is accepted.
        seen: how likely that was taken to be after the latest nodes, shape `(nodes,)`.
    """

    temperature: float = 1.0
    calibration: Calibration = attrs.field(factory=Calibration)
    seen: FloatArray = attrs.field(factory=lambda: np.array(UNSEEN))

    @property
    def mean(self) -> float:
        return float(self.seen.mean())

    def expected(self, logp: FloatArray) -> FloatArray:
        likely: FloatArray = np.log(expected_of_draws(np.exp(logp))[:, 0])
        return likely

    def saw(self, prob: FloatArray) -> None:
        self.seen = np.concatenate([self.seen, prob])[-LATEST:]

    def brings(self, price: float) -> float:
        """What a draw under a node brings above a price, in tokens, where it is made only if it is worth that."""
        return float(np.maximum(self.seen - price, 0.0).mean())

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
