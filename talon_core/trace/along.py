"""How a drafter's offers lie along a text."""

from collections.abc import Sequence

import attrs
import numpy as np

from talon_core.tree import IntArray
from talon_core.tree_arrays import ints


@attrs.frozen(eq=False)
class Along:
    """How a drafter's offers lie along a text.

    At each position the drafter offers the tokens that follow, as far as it offers them one after the other. Each has a
    rank: how many of all the nodes that are offered there come first, the likeliest ones and of equals the earlier one.
    The ranks of a position rise, as no node is likelier than the one above it.

    Attributes:
        ranks: position behind position, shape `(offered,)`, integers.
        reach: how many of them each position has, shape `(positions,)`, integers.
        shallow: as `ranks`, but counted among those nodes alone that are no deeper than the token itself; None where it
            is not known, as of what was recorded by an earlier version.
    """

    ranks: IntArray
    reach: IntArray
    shallow: IntArray | None = None

    @classmethod
    def listed(cls, ranks: Sequence[Sequence[int]], shallow: Sequence[Sequence[int]] | None = None) -> "Along":
        """By the ranks of each position."""
        lowest = None if shallow is None else ints([rank for own in shallow for rank in own])
        return cls(ints([rank for own in ranks for rank in own]), ints([*map(len, ranks)]), lowest)

    @classmethod
    def joined(cls, texts: "Sequence[Along]") -> "Along":
        """Along several texts, at least one, behind each other: no pass leads from one into the next."""
        return cls(np.concatenate([one.ranks for one in texts]), np.concatenate([one.reach for one in texts]))

    def __len__(self) -> int:
        return len(self.reach)

    def within(self, nodes: float) -> IntArray:
        """How many of the tokens at each position are among so many of the likeliest nodes, shape `(positions,)`."""
        counted = np.concatenate([[0], (self.ranks < nodes).cumsum()])
        ends = self.reach.cumsum()
        found: IntArray = counted[ends] - counted[ends - self.reach]
        return found

    def in_hindsight(self, nodes: float) -> int:
        """The fewest target passes with chains along the text; one that is shorter than it could be may lead to more.

        Args:
            nodes: of a chain at most, the root included.
        """
        # a position is reached with no more passes than one behind it, so each pass may go as far as any so far could
        ahead = np.arange(len(self)) + np.minimum(1 + self.reach, nodes)
        return _passes(np.maximum.accumulate(ahead).astype(np.int64).tolist())

    def by_the_laws(self, nodes: float) -> int:
        """Target passes with the likeliest nodes, so many with the root."""
        return _passes((np.arange(len(self)) + 1 + self.within(nodes - 1)).tolist())


def _passes(ahead: Sequence[int]) -> int:
    """How many passes lead from the first position to the end, where each leads from one position to another."""
    position = passes = 0
    while position < len(ahead):
        position = ahead[position]
        passes += 1
    return passes
