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
        self._prob = np.zeros((LATEST, BEST))
        self._count = 0
        self.add(np.array(first).reshape(-1, BEST))

    def add(self, prob: FloatArray) -> None:
        """Nodes that were seen, and the probabilities of their candidates, falling, shape `(nodes, width)`."""
        rows = prob[-LATEST:, :BEST]
        places = (self._count + np.arange(len(rows))) % LATEST
        self._prob[places] = 0.0
        self._prob[places, : rows.shape[1]] = rows
        self._count += len(rows)

    @property
    def prob(self) -> FloatArray:
        """The probabilities of the best candidates of each node, falling, 0 behind them, shape `(seen, BEST)`."""
        return self._prob[: self._count]


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
        for group, seen in zip((~sure, sure), self.seen, strict=True):
            seen.add(prob[group])

    def gains(self, own: FloatArray, reach: FloatArray, price: float) -> FloatArray:
        """What the candidates of each of some nodes are expected to bring above what they cost, in tokens.

        A candidate of probability x after a node that is reached with probability r brings r x tokens; it is verified
        only where that is more than its price. The mean of that over what was seen is what is expected.

        Args:
            own: as for `learn`.
            reach: how likely the whole path to each node is accepted, likewise.
            price: of a node, in tokens.

        Returns:
            Shape `(nodes,)`, at least 0.
        """
        sure = own >= SURE
        gained = np.empty(len(own))
        for group, seen in zip((~sure, sure), self.seen, strict=True):
            if group.any():
                prob = seen.prob.ravel()
                gained[group] = np.maximum(np.outer(reach[group], prob) - price, 0.0).sum(axis=1) / (len(prob) // BEST)
        return gained
