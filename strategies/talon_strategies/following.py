"""What the next layer is likely to bring, by what followed the nodes that were drafted from before."""

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
        self.prob = np.array(first).reshape(-1, BEST)
        """Probabilities of the best candidates of each node, falling, 0 behind them, shape `(seen, BEST)`."""
        self._rising: FloatArray | None = None  # all of them; None where others have been added since
        self._sums = np.zeros(1)  # of the last of these, the last 1, the last 2, ...

    def add(self, prob: FloatArray) -> None:
        """Nodes that were seen, and the probabilities of their candidates, falling, shape `(nodes, width)`."""
        if not len(prob):
            return
        best = prob[-LATEST:, :BEST]
        if best.shape[1] < BEST:
            best = np.pad(best, ((0, 0), (0, BEST - best.shape[1])))
        self.prob = np.concatenate([self.prob, best])[-LATEST:]
        self._rising = None

    def gains(self, reach: FloatArray, price: float) -> FloatArray:
        """What the candidates of nodes are expected to bring, see `Following.gains`.

        Args:
            reach: how likely each node is reached, more than 0, shape `(nodes,)`.
            price: of a candidate, in tokens.
        """
        if self._rising is None:
            self._rising = self.prob.flatten()
            self._rising.sort()
            self._sums = np.zeros(len(self._rising) + 1)
            self._rising[::-1].cumsum(out=self._sums[1:])
        worth_it = len(self._rising) - self._rising.searchsorted(max(price, 0.0) / reach, side="right")
        brought: FloatArray = reach * self._sums.take(worth_it) - worth_it * price
        return np.maximum(brought, 0.0) / max(len(self.prob), 1)


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

    def gains(self, own: FloatArray, reach: FloatArray, price: float) -> FloatArray:
        """What the candidates of each of some nodes are expected to bring above what they cost, in tokens.

        A candidate of probability x after a node that is reached with probability r brings r x tokens; it is verified
        only where that is more than its price. The mean of that over what was seen is what is expected.

        Args:
            own: as for `learn`.
            reach: how likely the whole path to each node is accepted, likewise.
            price: of a node, in tokens.

        Returns:
            For each node, at least 0, shape `(nodes,)`.
        """
        unsure, sure = self.seen
        if len(own) == 1:
            return (sure if own[0] >= SURE else unsure).gains(reach, price)
        found: FloatArray = np.where(own >= SURE, sure.gains(reach, price), unsure.gains(reach, price))
        return found
