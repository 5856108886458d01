"""What drafted probabilities are worth: how often the target agrees, learnt from what was accepted and rejected."""

from collections.abc import Sequence
from math import inf, log, log1p
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics.logistic import log_odds_of, log_sigmoid
from talon_core.rounds import Round
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import totals

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
        precision: of the line, a matrix of two rows that is its own mirror image: the first row and the last number,
            shape `(3,)`.
    """

    line: FloatArray = attrs.field(factory=lambda: np.array(START))
    precision: FloatArray = attrs.field(factory=lambda: np.array([TRUST[0], 0.0, TRUST[1]]))

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
        self.learn_tested(logp, np.array([node in accepted for node in tested]))

    def learn_tested(self, logp: FloatArray, accepted: NDArray[np.bool_]) -> None:
        """Take note of tokens that were tested, of one round or of several, in one step.

        Args:
            logp: the drafter's log-probabilities of them after their parents, shape `(tested,)`.
            accepted: which were accepted, likewise.
        """
        told = told_by(logp, accepted, self.line[0], self.line[1])
        sums = totals(told).tolist()
        self.line[:], self.precision[:] = stepped(self.line.tolist(), self.precision.tolist(), sums)


class CalibrationOfEach:
    """`Calibration` of several texts, side by side; what is learnt here, each text's own knows.

    Args:
        of: of each text.

    Attributes:
        lines: of each, shape `(texts, 2)`.
    """

    def __init__(self, of: Sequence[Calibration]) -> None:
        self.lines = np.array([one.line for one in of])
        self._precisions = np.array([one.precision for one in of])
        for one, line, precision in zip(of, self.lines, self._precisions, strict=True):
            one.line, one.precision = line, precision

    def learn(self, texts: IntArray, logp: FloatArray, accepted: NDArray[np.bool_]) -> None:
        """Take note of the tokens that a round of each of some texts has tested.

        Args:
            texts: whose each token is, shape `(tested,)`.
            logp: the drafter's log-probabilities of them after their parents, likewise.
            accepted: which were accepted, likewise.
        """
        size, line = len(self.lines), self.lines[texts]
        told = told_by(logp, accepted, line[:, 0], line[:, 1])
        (own,) = np.bincount(texts, minlength=size).nonzero()
        sums = [np.bincount(texts, each, size)[own] for each in told]
        lines, precisions = stepped(self.lines[own].T, self._precisions[own].T, sums)
        self.lines[own], self._precisions[own] = np.transpose(lines), np.transpose(precisions)


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


def raw(accepted: float, line: FloatArray) -> float:
    """The drafter's log-probability of what is accepted with a probability, by a calibration; infinite for none."""
    if accepted <= 0.0:
        return -inf
    if accepted >= 1.0:
        return inf
    odds = (log(accepted / (1.0 - accepted)) - line.item(0)) / line.item(1)
    return -log1p(np.exp(-odds)) if odds > -30.0 else odds


def told_by(logp: FloatArray, accepted: NDArray[np.bool_], offset: FloatArray, slope: FloatArray) -> FloatArray:
    """What tokens that were tested tell.

    Args:
        logp: the drafter's log-probabilities of them after their parents, shape `(tested,)`.
        accepted: which were accepted, likewise.
        offset: of the line before, one number, or one for each token.
        slope: likewise.

    Returns:
        What each weighs in the precision of the line, times 1, its log-odds, and their square; and how much more it was
        accepted than expected, times 1, and its log-odds. Shape `(5, tested)`.
    """
    odds = log_odds_of(logp, CERTAIN)
    expected = 1.0 / (1.0 + np.exp(-offset - slope * odds))
    weights, errors = expected * (1.0 - expected), accepted - expected
    weighed = weights * odds
    return np.stack([weights, weighed, weighed * odds, errors, errors * odds])


def stepped(line: Any, precision: Any, sums: Any) -> tuple[Any, Any]:
    """A line and its precision after one step of Newton's method: sequences of numbers, or of one array for all texts.

    Args:
        line: before, offset and slope.
        precision: before; see `Calibration`.
        sums: of what `told_by` says of tokens.
    """
    a, b, d = (before + told for before, told in zip(precision, sums[:3], strict=True))
    first, second = sums[3:]
    whole = a * d - b * b
    offset, slope = line[0] + (d * first - b * second) / whole, line[1] + (a * second - b * first) / whole
    return [offset, np.maximum(slope, LEAST_SLOPE)], [a, b, d]
