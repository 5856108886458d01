"""Log-odds, and back: what regressions on the drafter's confidence have in common."""

from math import exp, log
from typing import Any

import numpy as np

from talon_core.tree_arrays import FloatArray


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


def log_odds_of(logp: Any, most: float) -> FloatArray:
    """The log-odds of log-probabilities, cut at `most` on both sides.

    Args:
        logp: natural log-probabilities, any shape; those of padding, minus infinity, are cut, too.
        most: the largest size of log-odds.

    Returns:
        The same shape, float64.
    """
    below = np.minimum(logp, -1e-9)
    odds: FloatArray = below - np.log(-np.expm1(below))
    cut: FloatArray = np.minimum(np.maximum(odds, -most), most)  # of so few numbers sooner done than by `clip`
    return cut


def log_sigmoid(odds: FloatArray) -> FloatArray:
    """The log-probabilities of log-odds, any shape."""
    logp: FloatArray = -np.logaddexp(0.0, -odds)
    return logp
