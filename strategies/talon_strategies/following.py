"""What the next layer is likely to bring, by what followed the nodes that were drafted from before."""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections import deque

import attrs
import numpy as np

from talon_core.tree import FloatArray

SURE = 0.7
"""Nodes that are at least so likely once their parent is accepted are one group, the others another."""

BEST = 3
"""Candidates of a node that are remembered: the likeliest."""

LATEST = 64
"""Nodes of a group that are remembered."""

FIRST = ((0.4, 0.15, 0.1), (0.8, 0.1, 0.05))
"""What is taken to follow one that is not sure, and one that is, as one node of each group that was seen."""


class Seen:
    """The best candidates after the latest nodes of a group.

    Args:
        first: what is taken for the first ones, falling, each of `BEST` candidates.
    """

    def __init__(self, *first: tuple[float, ...]) -> None:
        self._rows: deque[list[float]] = deque(maxlen=LATEST)
        self._rising: list[float] = []  # all of them
        self._sums: list[float] = []  # of the last 0, 1, 2, ... of these; empty where others have been added since
        self.add(np.array(first).reshape(-1, BEST))

    def add(self, prob: FloatArray) -> None:
        """Nodes that were seen, and the probabilities of their candidates, falling, shape `(nodes, width)`."""
        for row in prob[:, :BEST].tolist():
            if len(self._rows) == LATEST:
                for oldest in self._rows[0]:
                    del self._rising[bisect_left(self._rising, oldest)]
            self._rows.append(row)
            for newest in row:
                insort(self._rising, newest)
            self._sums = []

    def gain(self, reach: float, price: float) -> float:
        """What the candidates of a node are expected to bring, see `Following.gains`.

        Args:
            reach: how likely the node is reached, more than 0.
            price: of a candidate, in tokens.
        """
        if not self._sums:
            self._sums = [0.0, *itertools.accumulate(reversed(self._rising))]
        worth_it = len(self._rising) - bisect_right(self._rising, max(price, 0.0) / reach)
        return max(reach * self._sums[worth_it] - worth_it * price, 0.0) / max(len(self._rows), 1)

    @property
    def prob(self) -> FloatArray:
        """The probabilities of the best candidates of each node, falling, 0 behind them, shape `(seen, BEST)`."""
        found = np.zeros((len(self._rows), BEST))
        for own, row in zip(found, self._rows, strict=True):
            own[: len(row)] = row
        return found


@attrs.define(eq=False)
class Following:
    """The best candidates after the latest nodes of a text, after sure nodes and after others.

    A drafter that is sure of a token is more often sure of the next one, too. What follows a node is not known before
    it is drafted from, but what has followed others like it is.

    Attributes:
        seen: of both groups.
    """

    seen: tuple[Seen, ...] = attrs.field(factory=lambda: tuple(map(Seen, FIRST)))

    def learn(self, own: FloatArray, prob: FloatArray) -> None:
        """Take note of what follows some nodes.

        Args:
            own: how likely each of them is once its parent is accepted, shape `(nodes,)`; 1 of a root.
            prob: how likely their candidates are once they are, falling, shape `(nodes, width)`.
        """
        sure = own >= SURE
        unsure, seen_sure = self.seen
        if len(own) == 1:
            (seen_sure if sure[0] else unsure).add(prob)
        else:
            unsure.add(prob[~sure])
            seen_sure.add(prob[sure])

    def gains(self, own: FloatArray, reach: FloatArray, price: float) -> list[float]:
        """What the candidates of each of some nodes are expected to bring above what they cost, in tokens.

        A candidate of probability x after a node that is reached with probability r brings r x tokens; it is verified
        only where that is more than its price. The mean of that over what was seen is what is expected.

        Args:
            own: as for `learn`.
            reach: how likely the whole path to each node is accepted, likewise.
            price: of a node, in tokens.

        Returns:
            For each node, at least 0.
        """
        unsure, sure = self.seen
        return [
            (sure if mine >= SURE else unsure).gain(reached, price)
            for mine, reached in zip(own.tolist(), reach.tolist(), strict=True)
        ]
