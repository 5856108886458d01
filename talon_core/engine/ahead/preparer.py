"""The ability of going on while a tree is verified, as the stages of a round use it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import attrs

from talon_core.costs import Costs
from talon_core.drafter import Drafter
from talon_core.policy import TreePolicy
from talon_core.rounds import Span
from talon_core.tree import TokenTree


@attrs.frozen(eq=False)
class Verifying:
    """A tree that the target is about to verify.

    Attributes:
        drafted: the tree as it was drafted: its nodes are counted as the drafter counts them.
        tree: as it is verified.
        deepest: the deepest token that can still be emitted, counted from the root at 0.
        ends: tokens that end the text.
        vocab_size: token ids are 0 to `vocab_size - 1`.
        policy: the sequence's own, which has drafted the tree; how the next one might grow is asked of a copy.
        costs: what it was told that passes take; they are shared with the copy, as they are now.
        children: the kind of trees that the rule is exact for; None for what the policy says of itself.
    """

    drafted: TokenTree
    tree: TokenTree
    deepest: int
    ends: frozenset[int]
    vocab_size: int
    policy: TreePolicy
    costs: Costs
    children: str | None = None


class Preparer(Drafter):
    """A drafter that goes on while its trees are verified.

    `verifying` is called in each round, right before the target's pass; whatever is called next ends the preparing.

    Attributes:
        behind: the drafter that is asked, whom errors name.
        passed_on: whether that one was asked, in the latest `propose`, just what this one was asked: only then that
            has taken what a layer of the drafter takes.
    """

    behind: Drafter
    passed_on: bool = True

    @abstractmethod
    def verifying(self, trees: Mapping[int, Verifying]) -> None:
        """These trees are verified now, by slot."""

    @abstractmethod
    def hit(self, slot: int) -> bool | None:
        """Whether the beginning of the current round was prepared; None where nothing had been prepared for it."""

    @abstractmethod
    def spans(self, slot: int) -> Sequence[Span]:
        """What was prepared, and waited for, since this was asked the last time."""
