"""Chains that are worth drafting for some rounds: decided before the first of them, and learnt from behind the last."""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from operator import mul
from typing import NamedTuple

import attrs
import numpy as np

from talon_core.chains import Account, Chains
from talon_core.tree import FloatArray
from talon_strategies.calibration import Calibration, raw
from talon_strategies.draws_learnt import Drawing
from talon_strategies.following import SURE, Following

ROUNDS = 16
"""Rounds for which a shape stands, at most: what they teach counts from then on."""

WIDTH_OF_CHAINS = 4
"""Candidates that are asked for: those that `Following` remembers, and one. Passes are recorded by it."""

DEEPEST = 6
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


def learn_chains(
    notes: Sequence[ChainNote],
    calibration: Calibration,
    following: Following,
    drawing: Drawing | None = None,
    drawn: bool = False,
) -> list[float]:
    """Learn from some rounds at once.

    Args:
        notes: of the rounds, each with a layer at least.
        calibration: learns which tokens were accepted.
        following: learns what followed which tokens.
        drawing: learns of draws; None where none are made.
        drawn: whether the tokens of these chains were drawn.

    Returns:
        Tokens that were expected of each round.
    """
    logp = np.array([layer for note in notes for layer in note.logp])
    conditional = np.exp(calibration.accepted(logp))
    judge, offered, likely = calibration, logp[:, 0], conditional[:, 0]
    if drawing is not None:
        expected_draws = drawing.expected(logp)
        of_draws = np.exp(drawing.calibration.accepted(expected_draws))
        drawing.saw(likely, of_draws)
        if drawn:
            judge, offered, likely = drawing.calibration, expected_draws, of_draws
    best = likely.tolist()
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
        judge.learn_tested(offered[tested], np.array(accepted))
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


class ChainPrices(NamedTuple):
    """What rounds of chains take, and what they may lose.

    Attributes:
        verifying: seconds of a round besides its layers with 0, 1, ... drafted tokens, at least two of them.
        layer: seconds of a layer.
        rate: tokens that a second is worth.
        afford: seconds that these rounds may lose together.
        even: seconds of a round that loses nothing, for each token that it emits.
        most: seconds that any part of a text may lose.
    """

    verifying: FloatArray
    layer: float
    rate: float
    afford: float
    even: float
    most: float = inf

    def seconds(self, depth: int) -> float:
        """Of a round whose chain has so many tokens."""
        return depth * self.layer + self.verifying.item(depth)

    def lost(self, depth: int) -> float:
        """Seconds that such a round loses, at most."""
        return self.seconds(depth) - self.even

    def node(self, depth: int) -> float:
        """What verifying the token at a depth costs, in tokens."""
        return self.rate * (self.verifying.item(depth) - self.verifying.item(depth - 1))

    def rounds(self, depth: int) -> int:
        """For how many rounds such chains stand: the last of them may not lose all that the first have gained."""
        lost = self.lost(depth)
        return ROUNDS if lost * ROUNDS <= self.most else max(int(self.most / lost), 1)

    def account(self, depth: int) -> Account | None:
        """Of chains of so many tokens; None where no round of theirs loses anything."""
        lost = self.lost(depth)
        return Account(self.afford, lost, self.layer, self.verifying[: depth + 1], self.even) if lost > 0.0 else None


def planned(line: FloatArray, following: Following, prices: ChainPrices, most: int, width: int) -> Chains:
    """The chains of some rounds to come.

    A token joins while it is likelier accepted than verifying it costs, and is drafted from where what is likely to
    follow it brings more than another layer costs; both in tokens, at the rate of what a second is worth.

    Args:
        line: of the calibration, see `Calibration`; it is taken to hold for whole paths as well.
        following: what followed nodes of the text.
        prices: of the rounds.
        most: tokens of a chain, at least 1.
        width: candidates that are asked for.

    Returns:
        Of at least one round, and of one token at least.
    """
    joins, goes_on = [raw(prices.node(1), line)], []
    for depth in range(2, min(most, DEEPEST, len(prices.verifying) - 1) + 1):
        price = prices.node(depth)
        reach = least_reach(following, price, prices.rate * prices.layer)
        if reach > 1.0 or price >= 1.0 or prices.lost(depth) * WORST > prices.afford:
            break
        goes_on.append(raw(reach, line))
        joins.append(raw(price, line))
    goes_on.append(inf)
    return Chains(prices.rounds(len(joins)), width, joins, goes_on, prices.account(len(joins)))


def planned_draws(drawing: Drawing, prices: ChainPrices, most: int, width: int) -> Chains:
    """As `planned`, of chains whose tokens are drawn: as long as brings most if all draws are accepted as often.

    Args:
        drawing: what is known of draws.
        prices: as there, and so are the others.
        most: likewise.
        width: likewise.
    """
    share, best, depth, brings = drawing.mean, -inf, 1, 0.0
    for length in range(1, min(most, DEEPEST, len(prices.verifying) - 1) + 1):
        if length > 1 and prices.lost(length) * WORST > prices.afford:
            break
        brings += share**length
        surplus = brings - prices.rate * prices.seconds(length)
        if surplus > best:
            best, depth = surplus, length
    joins, goes_on = [drawing.level(prices.node(1))] + [-inf] * (depth - 1), [-inf] * (depth - 1) + [inf]
    return Chains(prices.rounds(depth), width, joins, goes_on, prices.account(depth), drawing.chained)


def gain_of_branches(following: Following, price: float, depth: int) -> float:
    """What further candidates after the root of a chain and its nodes bring above what they cost, in tokens.

    What follows is taken to be the same everywhere, and the chain to be accepted as often as its best tokens are.

    Args:
        following: what followed nodes of the text.
        price: of verifying another node than those of the chain, in tokens.
        depth: tokens of the chain.
    """
    _, sure = following.seen  # a root is
    reach = sure.prob[:, 0].mean() ** np.arange(depth)
    return float(np.maximum(reach[:, None, None] * sure.prob[:, 1:] - price, 0.0).sum()) / len(sure.prob)


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
