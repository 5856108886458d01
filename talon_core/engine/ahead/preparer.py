"""The ability of going on while a tree is verified, and how the stages of a round use it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import attrs

from talon_core.costs import Costs
from talon_core.drafter import Drafter
from talon_core.engine.spans import SlotSpans
from talon_core.errors import blaming
from talon_core.policy import TreePolicy
from talon_core.rounds import Span
from talon_core.tree import TokenTree

if TYPE_CHECKING:
    from talon_core.engine.drafting import Drafted, Wanted
    from talon_core.engine.sequence import Sequence as Decoded


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
    def drafting(self, trees: "Sequence[Wanted]") -> None:
        """These trees are drafted next: `propose` is asked about them layer by layer."""

    @abstractmethod
    def verifying(self, trees: Mapping[int, Verifying]) -> None:
        """These trees are verified now, by slot."""

    @abstractmethod
    def hit(self, slot: int) -> bool | None:
        """Whether the beginning of the current round was prepared; None where nothing had been prepared for it."""

    @abstractmethod
    def spans(self, slot: int) -> Sequence[Span]:
        """What was prepared, and waited for, since this was asked the last time."""

    def hurried(self) -> AbstractContextManager[None]:
        """While entered, the user waits for the end: what is prepared, or asked, is waited for a moment, or is lost."""
        return nullcontext()


class Preparations:
    """What is prepared while the target verifies: here nothing, for a drafter that waits until it is asked again."""

    @property
    def passed_on(self) -> bool:
        """As `Preparer.passed_on`."""
        return True

    def drafting(self, trees: "Sequence[Wanted]") -> None:
        """As `Preparer.drafting`."""

    def begin(
        self, drafted: "Mapping[int, Drafted]", sequences: "Mapping[int, Decoded]", costs: Costs, spans: SlotSpans
    ) -> None:
        """The target is about to verify.

        Args:
            drafted: what was drafted, with the trees as they will be verified, by slot.
            sequences: what is decoded, by slot.
            costs: what passes take.
            spans: gets what it takes to begin.
        """

    def hit(self, slot: int) -> bool | None:
        """As `Preparer.hit`."""
        return None

    def spans(self, slot: int) -> Sequence[Span]:
        """As `Preparer.spans`."""
        return ()

    def hurried(self) -> AbstractContextManager[None]:
        """As `Preparer.hurried`."""
        return nullcontext()


NOTHING_PREPARED = Preparations()


class DrafterPreparations(Preparations):
    """What a `Preparer` prepares.

    Args:
        drafter: it.
        named: whom errors name.
        vocab_size: the target's.
    """

    def __init__(self, drafter: Preparer, named: object, vocab_size: int) -> None:
        self._drafter, self._named, self._vocab_size = drafter, named, vocab_size

    @property
    def passed_on(self) -> bool:
        return self._drafter.passed_on

    def drafting(self, trees: "Sequence[Wanted]") -> None:
        self._drafter.drafting(trees)

    def begin(
        self, drafted: "Mapping[int, Drafted]", sequences: "Mapping[int, Decoded]", costs: Costs, spans: SlotSpans
    ) -> None:
        trees = {}
        for slot, one in drafted.items():
            limits = sequences[slot].limits(self._vocab_size, None)
            trees[slot] = Verifying(
                drafted=one.drafted,
                tree=one.tree,
                deepest=sequences[slot].deepest,
                ends=limits.ends,
                vocab_size=limits.vocab_size,
                children=limits.children,
                policy=sequences[slot].policy,
                costs=costs,
            )
        with blaming("drafter", self._named, "propose"), spans.of("policy", trees, "copy"):
            self._drafter.verifying(trees)

    def hit(self, slot: int) -> bool | None:
        return self._drafter.hit(slot)

    def spans(self, slot: int) -> Sequence[Span]:
        return self._drafter.spans(slot)

    def hurried(self) -> AbstractContextManager[None]:
        return self._drafter.hurried()
