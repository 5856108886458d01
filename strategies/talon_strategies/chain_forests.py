"""Chains of several texts at once: what joins them, and what is noted of them until it is learnt."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from talon_core.chains import Account, Chains
from talon_core.forest import ForestCandidates
from talon_core.tree import FloatArray, IntArray
from talon_strategies.chain_plan import DEEPEST, ROUNDS, WIDTH_OF_CHAINS, ChainNote

Learnt = tuple[FloatArray, NDArray[np.bool_], NDArray[np.bool_], Sequence[Sequence[float]]]
"""See `ChainsOfEach.learnt`."""


UNBOUNDED = Account(0.0, 0.0, 0.0, [0.0] * (1 + DEEPEST), 0.0)
"""Takes the place of none."""


class ChainsOfEach:
    """The chains of several texts, side by side.

    Args:
        texts: how many there are.

    Attributes:
        on: of which texts the trees are chains now, shape `(texts,)`.
    """

    def __init__(self, texts: int) -> None:
        self.on = np.zeros(texts, dtype=bool)
        self._counts, self._rounds = np.zeros((2, texts), dtype=np.int64)  # that are over, and for which they stand
        self._spare, self._least, self._layer, self._token = np.zeros((4, texts))  # of their accounts
        self._verifying = np.zeros((texts, 1 + DEEPEST))  # likewise
        self._width = 0
        self._joins, self._goes_on = np.full((2, texts, DEEPEST), np.inf)
        self._logp = np.full((texts, ROUNDS, DEEPEST, WIDTH_OF_CHAINS), -np.inf)
        self._layers, self._nodes, self._accepted = np.zeros((3, texts, ROUNDS), dtype=np.int64)
        self._booked: list[tuple[list[int], list[float]]] = [([], []) for _ in range(texts)]
        self._drafted = np.zeros(texts, dtype=np.int64)  # layers of this round

    def begin(self, text: int, chains: Chains | None) -> None:
        """These are the chains of a text from now on; None if its trees are none."""
        if chains is None and not self.on[text]:
            return
        self.on[text] = chains is not None
        self._joins[text], self._goes_on[text] = np.inf, np.inf
        self._counts[text], self._drafted[text] = 0, 0
        self._booked[text] = [], []
        if chains is not None:
            self._width, self._rounds[text] = chains.width, chains.rounds
            self._joins[text, : chains.depth], self._goes_on[text, : chains.depth] = chains.joins, chains.goes_on
            account = chains.account or UNBOUNDED
            given = account.credit, account.least, account.layer, account.token
            self._spare[text], self._least[text], self._layer[text], self._token[text] = given
            self._verifying[text, : len(account.nodes)] = account.nodes

    def grown(self, layer: int, candidates: ForestCandidates) -> tuple[IntArray, NDArray[np.bool_], IntArray]:
        """A layer of some of the chains.

        Args:
            layer: which it is, from 0.
            candidates: one row of each of the trees.

        Returns:
            Which candidates join, as flat indices, shape `(joined,)`; which of these are drafted from, likewise; and
            how many drafted nodes each chain has then, shape `(trees,)`.
        """
        trees = candidates.trees
        rounds, width = self._counts[trees], min(candidates.width, self._width)
        self._logp[trees, rounds, layer] = -np.inf
        self._logp[trees, rounds, layer, :width] = candidates.logp[:, :width]
        self._drafted[trees] = layer + 1
        path = candidates.path_logp[:, 0]
        joins = path >= self._joins[trees, layer]
        goes_on = path >= self._goes_on[trees, layer]
        return joins.nonzero()[0] * candidates.width, goes_on[joins], layer + joins

    def book(self, text: int, new: int, passes: float) -> None:
        """A round of a text is over, see `ChainNote`."""
        news, taken = self._booked[text]
        news.append(new)
        taken.append(passes)

    def note(self, texts: IntArray, nodes: IntArray, accepted: IntArray) -> IntArray:
        """A round of each of some texts is over.

        Args:
            texts: which.
            nodes: of each text, see `ChainNote`, shape `(all texts,)`.
            accepted: likewise.

        Returns:
            Those of them of which all rounds are over for which their chains stand, shape `(over,)`.
        """
        places = texts, self._counts[texts]
        self._layers[places] = self._drafted[texts]
        self._nodes[places], self._accepted[places] = nodes[texts], accepted[texts]
        self._counts[texts] += 1
        taken = self._layer[texts] * self._drafted[texts] + self._verifying[texts, nodes[texts]]
        self._spare[texts] += self._token[texts] * (1 + accepted[texts]) - taken
        self._drafted[texts] = 0
        over = (self._counts >= self._rounds) | (self._spare < self._least)
        ended: IntArray = texts[over[texts]]
        return ended

    def spare(self, text: int) -> float:
        """What is left of the credit of a text's chains."""
        return self._spare.item(text)

    def booked(self, text: int) -> tuple[list[int], list[float]]:
        """Of each round of a text that is over, tokens that it has emitted, and passes that it took."""
        return self._booked[text]

    def seen(self, texts: IntArray) -> tuple[IntArray, FloatArray, IntArray]:
        """All layers of the rounds of some texts that are over, text by text, round by round.

        Returns:
            Whose each is, shape `(layers,)`; the log-probabilities of its candidates, shape `(layers, width)`; and
            where it stands: in which of these texts, in which round, and how deep, shape `(3, layers)`.
        """
        there = np.arange(DEEPEST) < self._layers[texts, :, None]
        there &= (np.arange(ROUNDS) < self._counts[texts, None])[:, :, None]
        places = np.array(there.nonzero())
        of = texts[places[0]]
        return of, self._logp[of, places[1], places[2], : self._width], places

    def learnt(self, texts: IntArray, places: IntArray, best: FloatArray) -> Learnt:
        """What is to be learnt of the rounds of some texts that are over.

        Args:
            texts: which.
            places: where each layer stands, as `seen` gives it.
            best: how likely its best token is accepted once its parent is, shape `(layers,)`.

        Returns:
            How likely the node was that each layer was drafted from; whether the layer's best token was tested, and
            whether it was accepted, shape `(layers,)` each; and the tokens that were expected of each text's rounds.
        """
        of, round_, layer = places
        nodes, accepted = (each[texts[of], round_] for each in (self._nodes, self._accepted))
        own = np.ones(len(best))
        own[1:][layer[1:] > 0] = best[:-1][layer[1:] > 0]
        verified = np.zeros((len(texts), ROUNDS, DEEPEST))
        verified[of, round_, layer] = best
        verified[np.arange(DEEPEST) >= self._nodes[texts, :, None]] = 0.0
        expected = 1.0 + verified.cumprod(axis=2).cumsum(axis=2)[:, :, -1]
        counts = self._counts[texts].tolist()
        of_rounds = [one[:count] for one, count in zip(expected.tolist(), counts, strict=True)]
        return own, layer < np.minimum(nodes, accepted + 1), layer < accepted, of_rounds

    def handed_back(self, text: int) -> tuple[list[ChainNote], list[FloatArray]]:
        """The rounds of a text that are over, and the layers of the one that is not."""
        logp = self._logp[text, :, :, : self._width]
        told = (each[text].tolist() for each in (self._layers, self._nodes, self._accepted))
        notes = [
            ChainNote([*logp[number, :layers]], nodes, accepted, new, passes)
            for number, (layers, nodes, accepted, new, passes) in enumerate(
                zip(*told, *self._booked[text], strict=False)
            )
        ]
        return notes, [*logp[self._counts[text], : self._drafted[text]]] if self._drafted[text] else []
