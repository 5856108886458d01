"""What drafted probabilities are worth: how often the target agrees, learnt from what was accepted and rejected."""

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics.logistic import log_odds_of, log_sigmoid
from talon_core.rounds import Round
from talon_core.tree import FloatArray, IntArray

CERTAIN = 10.0
"""Log-odds are cut at this size: of a token that is surer than that a text tells nothing more."""

START = (0.0, 1.0)
"""Offset and slope before anything is known: the drafter is believed."""

TRUST = (4.0, 20.0)
"""How firmly: precisions of normal priors. A token that is as likely as not adds 0.25 to the first."""

LEAST_SLOPE = 0.05
"""So that a likelier token is never worth less."""


@attrs.define(eq=False)
class Calibration:
    """The probability that a drafted token is accepted once its parent is, by that which the drafter gave it.

    Its log-odds are a straight line over those of the drafter, as in DSpark (arXiv 2607.05147). The line is a logistic
    regression over the tokens that were tested, children of accepted nodes, with a normal prior around `START`. Each
    round moves it by one step of Newton's method, after which what the round has told is part of the prior; that is
    ours.

    Attributes:
        line: offset and slope, shape `(2,)`.
        precision: of the line, shape `(2, 2)`.
    """

    line: FloatArray = attrs.field(factory=lambda: np.array(START))
    precision: FloatArray = attrs.field(factory=lambda: np.diag(TRUST))

    def accepted(self, logp: FloatArray) -> FloatArray:
        """Log-probabilities of being accepted; padding keeps minus infinity.

        Args:
            logp: the drafter's log-probabilities of tokens after their parents, any shape.
        """
        return calibrated(logp, self.line[0], self.line[1])

    def learn(self, round_: Round, but: IntArray | None = None) -> None:
        """Take note of the tokens that a round has tested.

        Args:
            round_: with the tree that was verified.
            but: its nodes of which nothing is to be learnt, shape `(nodes,)`; None for none.
        """
        tree = round_.tree
        accepted, parents = {*round_.path.tolist()}, tree.parents.tolist()
        left_out = () if but is None else {*but.tolist()}
        tested = [node for node, parent in enumerate(parents) if parent in accepted and node not in left_out]
        if not tested:
            return
        logp = tree.path_logp[tested] - tree.path_logp[[parents[node] for node in tested]]
        self.step(*told_by(logp, np.array([node in accepted for node in tested]), self.line[0], self.line[1]))

    def step(self, odds: FloatArray, weights: FloatArray, errors: FloatArray) -> None:
        """One step of Newton's method, by what `told_by` says of the tokens that were tested, at least one.

        Args:
            odds: shape `(tested,)`.
            weights: likewise.
            errors: likewise.
        """
        self.precision = self.precision + moments(odds, weights)
        self.line = self.line + solved(self.precision, float(errors.sum()), float(errors @ odds))
        if self.line[1] < LEAST_SLOPE:
            self.line[1] = LEAST_SLOPE


def calibrated(logp: FloatArray, offset: FloatArray, slope: FloatArray) -> FloatArray:
    """`Calibration.accepted` by a line, or by one for each token.

    Args:
        logp: as there.
        offset: of the line, of a shape that goes with `logp`.
        slope: likewise.
    """
    found = log_sigmoid(offset + slope * log_odds_of(logp, CERTAIN))
    found[logp == -np.inf] = -np.inf
    return found


def told_by(
    logp: FloatArray, accepted: NDArray[np.bool_], offset: FloatArray, slope: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What tokens that were tested tell.

    Args:
        logp: the drafter's log-probabilities of them after their parents, shape `(tested,)`.
        accepted: which were accepted, likewise.
        offset: of the line before, one number, or one for each token.
        slope: likewise.

    Returns:
        Their log-odds, what each weighs in the precision of the line, and how much more it was accepted than expected.
    """
    odds = log_odds_of(logp, CERTAIN)
    expected = 1.0 / (1.0 + np.exp(-offset - slope * odds))
    return odds, expected * (1.0 - expected), accepted - expected


def moments(odds: FloatArray, weights: FloatArray) -> FloatArray:
    """The sums of the weights, times 1, the odds, and their squares, as a matrix of shape `(2, 2)`."""
    first = float(weights @ odds)
    return np.array([[float(weights.sum()), first], [first, float((weights * odds) @ odds)]])


def solved(matrix: FloatArray, first: float, second: float) -> FloatArray:
    """The x of matrix x = (first, second), where the matrix has shape `(2, 2)`: sooner than by a general solver."""
    (a, b), (c, d) = matrix.tolist()
    whole = a * d - b * c
    return np.array([(d * first - b * second) / whole, (a * second - c * first) / whole])
