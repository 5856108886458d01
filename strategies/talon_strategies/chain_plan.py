"""Chains that are worth drafting for some rounds: decided before the first of them, and learnt from behind the last."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf, log, log1p
from operator import mul
from typing import NamedTuple

import attrs
import numpy as np

from talon_core.chains import Account, Chains
from talon_core.tree import FloatArray
from talon_strategies.calibration import Calibration
from talon_strategies.following import SURE, Following

ROUNDS = 16
"""Rounds for which a shape stands, at most: what they teach counts from then on."""

WIDTH_OF_CHAINS = 4
"""Candidates that are asked for: those that `Following` remembers, and one. Passes are recorded by it."""

DEEPEST = 5
"""Tokens of a chain, at most: with more of them little is left of the likelihood of the whole path."""

UNSEEN = 16
"""Rounds with a draft after which passes are taken to be run one by one, if none was seen that was run ahead."""

FEW = 6
"""Rounds with branches before it is known what such a round takes."""

WORST = 2
"""As many rounds that lose as much as they can are to be paid for where a chain may have more than one token."""

REACHES = np.linspace(1 / 32, 1.0, 32)
"""How likely a path is accepted from which the next token is looked for, as finely as it is known."""


class ChainNote(NamedTuple):
    """What is to be learnt of a round whose tree was a chain.

    Attributes:
        logp: of each layer that was drafted, the log-probabilities of its candidates, shape `(width,)`.
        nodes: drafted tokens in the tree.
        accepted: how many of them.
        new: tokens that it has emitted.
        passes: that it took, in passes of plain decoding.
    """

    logp: list[FloatArray]
    nodes: int
    accepted: int
    new: int
    passes: float


def learn_chains(notes: Sequence[ChainNote], calibration: Calibration, following: Following) -> list[float]:
    """Learn from some rounds at once.

    Args:
        notes: of the rounds, each with a layer at least.
        calibration: learns which tokens were accepted.
        following: learns what followed which tokens.

    Returns:
        Tokens that were expected of each round.
    """
    logp = np.array([layer for note in notes for layer in note.logp])
    conditional = np.exp(calibration.accepted(logp))
    best = conditional[:, 0].tolist()
    own, expected = list[float](), list[float]()
    tested, accepted = list[int](), list[bool]()
    for note in notes:
        first, layers = len(own), len(note.logp)
        own += [1.0, *best[first : first + layers - 1]]
        tested += [*range(first, first + min(note.nodes, note.accepted + 1))]
        accepted += [place < note.accepted for place in range(min(note.nodes, note.accepted + 1))]
        reached = accumulate(best[first : first + note.nodes], mul)
        *_, all_reached = accumulate(reached, initial=0.0)  # from Python 3.12 on `sum` rounds otherwise than NumPy
        expected.append(1.0 + all_reached)
    if tested:
        calibration.learn_tested(logp[tested, 0], np.array(accepted))
    following.learn(np.array(own), conditional)
    return expected


def left_of(chains: Chains, over: int, credit: float) -> Chains:
    """Chains for those of their rounds that are not over, at least one.

    Args:
        chains: as they were planned.
        over: how many rounds of them are.
        credit: what is left of that of their account.
    """
    if not over:
        return chains
    account = None if chains.account is None else attrs.evolve(chains.account, credit=credit)
    return attrs.evolve(chains, rounds=chains.rounds - over, account=account)


def planned(
    line: FloatArray,
    following: Following,
    verifying: FloatArray,
    layer: float,
    rate: float,
    most: int,
    width: int,
    afford: float,
    even: float,
) -> Chains:
    """The chains of some rounds to come.

    A token joins while it is likelier accepted than verifying it costs, and is drafted from where what is likely to
    follow it brings more than another layer costs; both in tokens, at the rate of what a second is worth.

    Args:
        line: of the calibration, see `Calibration`; it is taken to hold for whole paths as well.
        following: what followed nodes of the text.
        verifying: seconds of a round besides its layers with 0, 1, ... drafted tokens, at least two of them.
        layer: seconds of a layer.
        rate: tokens that a second is worth.
        most: tokens of a chain, at least 1.
        width: candidates that are asked for.
        afford: seconds that these rounds may lose together.
        even: seconds of a round that loses nothing, for each token that it emits.

    Returns:
        Of at least one round, and of one token at least.
    """
    joins, goes_on = [raw(rate * (verifying.item(1) - verifying.item(0)), line)], []
    for depth in range(1, min(most, DEEPEST, len(verifying) - 1)):
        price = rate * (verifying.item(depth + 1) - verifying.item(depth))
        reach = least_reach(following, price, rate * layer)
        lost = (depth + 1) * layer + verifying.item(depth + 1) - even
        if reach > 1.0 or price >= 1.0 or lost * WORST > afford:
            break
        goes_on.append(raw(reach, line))
        joins.append(raw(price, line))
    goes_on.append(inf)
    lost = len(joins) * layer + verifying.item(len(joins)) - even
    account = Account(afford, lost, layer, verifying[: len(joins) + 1], even) if lost > 0.0 else None
    return Chains(ROUNDS, width, joins, goes_on, account)


def gain_of_branches(following: Following, price: float) -> float:
    """What further candidates after the root bring above what they cost, in tokens.

    Args:
        following: what followed nodes of the text.
        price: of verifying another node, in tokens.
    """
    _, sure = following.seen  # a root is
    return float(np.maximum(sure.prob[:, 1:] - price, 0.0).sum()) / len(sure.prob)


def raw(accepted: float, line: FloatArray) -> float:
    """The drafter's log-probability of what is accepted with a probability, by a calibration; infinite for none."""
    if accepted <= 0.0:
        return -inf
    if accepted >= 1.0:
        return inf
    odds = (log(accepted / (1.0 - accepted)) - line.item(0)) / line.item(1)
    return -log1p(np.exp(-odds)) if odds > -30.0 else odds


def least_reach(following: Following, price: float, layer: float) -> float:
    """How likely a path must be accepted for the best token behind it to be worth a layer; more than 1 for never.

    Args:
        following: what followed nodes of the text.
        price: of verifying that token, in tokens.
        layer: what the layer costs, in tokens.
    """
    unsure, sure = following.seen
    least = _least(unsure.prob[:, 0], price, layer)
    return least if least < SURE else max(_least(sure.prob[:, 0], price, layer), SURE)


def _least(best: FloatArray, price: float, layer: float) -> float:
    """The same by the probabilities of the best tokens that were seen after some nodes, shape `(seen,)`."""
    gains = np.maximum(REACHES[:, None] * best - price, 0.0).sum(axis=1)
    place = int(gains.searchsorted(layer * len(best), side="right"))
    return float(REACHES[place]) if place < len(REACHES) else inf
