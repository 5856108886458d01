"""Log-odds, and back: what regressions on the drafter's confidence have in common."""

from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray


def log_odds(prob: float, cut: float) -> float:
    """`ln(prob / (1 - prob))`.

    Args:
        prob: a probability; one nearer to 0 or 1 than `cut` counts as that far away.
        cut: more than 0.
    """
    prob = min(max(prob, cut), 1.0 - cut)
    return log(prob / (1.0 - prob))


def sigmoid(odds: float) -> float:
    """The probability of log-odds."""
    return 1.0 / (1.0 + exp(-odds))


def log_odds_of(logp: Any, most: float) -> NDArray[np.float64]:
    """The log-odds of log-probabilities, cut at `most` on both sides.

    Args:
        logp: natural log-probabilities, any shape; those of padding, minus infinity, are cut, too.
        most: the largest size of log-odds.

    Returns:
        The same shape, float64.
    """
    below = np.minimum(logp, -1e-9)
    odds: NDArray[np.float64] = below - np.log(-np.expm1(below))
    cut: NDArray[np.float64] = np.minimum(np.maximum(odds, -most), most)  # of so few numbers sooner done than by `clip`
    return cut


def log_sigmoid(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log-probabilities of log-odds, any shape."""
    logp: NDArray[np.float64] = -np.logaddexp(0.0, -odds)
    return logp
