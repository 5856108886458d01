"""What the next layer is likely to bring, by what followed the nodes that were drafted from before."""

from collections.abc import Sequence

import attrs
import numpy as np

from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import by_number

SURE = 0.7
"""Nodes that are at least so likely once their parent is accepted are one group, the others another."""

BEST = 3
"""Candidates of a node that are remembered: the likeliest."""

LATEST = 64
"""Nodes of a group that are remembered."""

FIRST = ((0.4, 0.15, 0.1), (0.8, 0.1, 0.05))
"""What is taken to follow one that is not sure, and one that is, as one node of each group that was seen."""

Price = float | FloatArray


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
        self.remember(np.concatenate([self.prob, best_of(prob[-LATEST:])])[-LATEST:])

    def remember(self, prob: FloatArray) -> None:
        """These are the candidates of the nodes that were seen, see `prob`."""
        self.prob = prob
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
        return brought(reach, self._sums.take(worth_it), worth_it, price) / max(len(self.prob), 1)


def best_of(prob: FloatArray) -> FloatArray:
    """The first `BEST` candidates of each node, 0 where there are fewer, shape `(nodes, BEST)`."""
    best: FloatArray = prob[:, :BEST]
    return best if best.shape[1] == BEST else np.pad(best, ((0, 0), (0, BEST - best.shape[1])))


def brought(reach: FloatArray, sums: FloatArray, count: IntArray, price: Price) -> FloatArray:
    """What candidates of each of some nodes bring above what they cost, in tokens, at least 0; shape `(nodes,)`.

    Args:
        reach: how likely each node is reached, shape `(nodes,)`.
        sums: of the probabilities of those of its candidates that are worth it, likewise.
        count: how many these are, likewise.
        price: of a candidate, in tokens, or one for those of each node.
    """
    found: FloatArray = np.maximum(reach * sums - count * price, 0.0)
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


ROOM = LATEST * BEST
"""Candidates of a group that are remembered."""


class FollowingOfEach:
    """`Following` of several texts, side by side.

    Group 2 i holds the nodes of text i that are not sure, and 2 i + 1 those that are.

    Args:
        of: of each text; `hand_back` tells them what was learnt.
    """

    def __init__(self, of: Sequence[Following]) -> None:
        self._seen = [seen for one in of for seen in one.seen]
        groups = len(self._seen)
        self._added = np.array([len(one.prob) for one in self._seen])  # nodes; the i-th stands in place i % LATEST
        self._told = self._added.copy()  # so far, of those that each text's own knows
        self._falling = np.full((groups, LATEST, BEST), np.inf)  # negative probabilities, infinite where nothing was
        for own, seen in zip(self._falling, self._seen, strict=True):
            own[: len(seen.prob)] = -seen.prob
        # the candidates of each group, falling: a complex number is looked up by its real part first, and so one search
        # finds its place in its own group
        self._keys = np.empty((groups, ROOM), dtype=np.complex128)
        self._keys.real = np.arange(groups)[:, None]
        self._sums = np.zeros((groups, 1 + ROOM))  # of the first of these
        self._sort(np.arange(groups))

    def _sort(self, groups: IntArray) -> None:
        falling = np.sort(self._falling[groups].reshape(-1, ROOM), axis=1)
        self._keys.imag[groups] = falling
        self._sums[groups, 1:] = np.where(falling == np.inf, 0.0, -falling).cumsum(axis=1)

    def gains(self, texts: IntArray, own: FloatArray, reach: FloatArray, price: FloatArray) -> FloatArray:
        """`Following.gains` of nodes of several texts; `price` is of each node.

        Args:
            texts: whose each node is, shape `(nodes,)`; of this shape are the others, too.
            own: as there.
            reach: likewise.
            price: likewise.
        """
        groups = 2 * texts + (own >= SURE)
        wanted = np.empty(len(groups), dtype=np.complex128)
        wanted.real, wanted.imag = groups, -(np.maximum(price, 0.0) / reach)
        seen = np.minimum(self._added.take(groups), LATEST)
        worth_it = np.minimum(self._keys.ravel().searchsorted(wanted) - groups * ROOM, seen * BEST)
        sums = self._sums.take(groups * (1 + ROOM) + worth_it)
        found: FloatArray = brought(reach, sums, worth_it, price) / np.maximum(seen, 1)
        return found

    def learn(self, texts: IntArray, own: FloatArray, prob: FloatArray) -> None:
        """`Following.learn` of nodes of several texts.

        Args:
            texts: whose each node is, shape `(nodes,)`.
            own: as there, likewise.
            prob: of their `BEST` candidates, 0 where there are fewer, shape `(nodes, BEST)`.
        """
        groups = 2 * texts + (own >= SURE)
        order = by_number(groups, len(self._seen))
        groups = groups[order]
        counts = np.bincount(groups, minlength=len(self._seen))
        rank = np.arange(len(groups)) - (counts.cumsum() - counts)[groups]
        latest = rank >= counts[groups] - LATEST
        groups, rank, order = groups[latest], rank[latest], order[latest]
        self._falling[groups, (self._added[groups] + rank) % LATEST] = -prob[order]
        self._added += counts
        self._sort(counts.nonzero()[0])

    def hand_back(self, texts: IntArray | None = None) -> None:
        """Tell those of each text what was learnt, or those of some texts."""
        new = self._added > self._told
        if texts is not None:
            of_texts = np.zeros((len(new) // 2, 2), dtype=bool)
            of_texts[texts] = True
            new &= of_texts.ravel()
        for group in new.nonzero()[0].tolist():
            added, own = int(self._added[group]), -self._falling[group]
            first = added % LATEST
            latest = np.concatenate([own[first:], own[:first]]) if added > LATEST else own[:added]
            self._seen[group].remember(latest)
        self._told[new] = self._added[new]
