"""What the next layer is likely to bring, by what followed the nodes that were drafted from before."""

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


def _first() -> tuple[deque[tuple[float, ...]], ...]:
    return tuple(deque([likely], maxlen=LATEST) for likely in FIRST)


@attrs.define(eq=False)
class Following:
    """The best candidates after the latest nodes of a text, after sure nodes and after others.

    A drafter that is sure of a token is more often sure of the next one, too. What follows a node is not known before
    it is drafted from, but what has followed others like it is.

    Attributes:
        seen: probabilities of the `BEST` likeliest candidates after each node, falling, of both groups.
    """

    seen: tuple[deque[tuple[float, ...]], ...] = attrs.field(factory=_first)

    def learn(self, own: FloatArray, prob: FloatArray) -> None:
        """Take note of what follows some nodes.

        Args:
            own: how likely each of them is once its parent is accepted, shape `(nodes,)`; 1 of a root.
            prob: how likely their candidates are once they are, falling, shape `(nodes, width)`.
        """
        best = np.zeros((len(prob), BEST))
        best[:, : prob.shape[1]] = prob[:, :BEST]
        for sure, row in zip((own >= SURE).tolist(), best.tolist(), strict=True):
            self.seen[sure].append(tuple(row))

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
        gained = np.empty(len(own))
        for sure, seen in enumerate(self.seen):
            group = (own >= SURE) == sure
            if group.any():
                brings = reach[group][:, None, None] * np.array(seen) - price  # (nodes, seen, BEST)
                gained[group] = np.maximum(brings, 0.0).sum(axis=2).mean(axis=1)
        return gained
