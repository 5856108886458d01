"""What policies that decide how long a chain becomes have in common."""

from abc import abstractmethod
from typing import ClassVar

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, TreePolicy
from talon_core.rounds import Round
from talon_core.tree import TokenTree
from talon_strategies.drawing import NOTHING
from talon_strategies.options import plus_one


class StoppingChain(TreePolicy):
    """A chain of the best next tokens, at most `length`, that ends with the first one after which `stops` is true.

    So at least one token is drafted, and the one that `stops` judges is part of the chain.
    """

    purpose = "chains that stop by confidence"

    length: int
    """Most drafted tokens, at least 1; an attrs field."""

    offered: ClassVar[int] = 1
    """Candidates that `stops` is shown of each node, where the drafter knows as many."""

    @property
    def budget(self) -> int:  # type: ignore[override]  # a field in other policies; here it follows from `length`
        return plus_one(self.length)

    def width(self, tree: TokenTree) -> int:
        return self.offered

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1), frontier=NOTHING if self.stops(tree, candidates) else None)

    @abstractmethod
    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        """Whether the best candidate, which joins the chain, is its last token.

        Args:
            tree: the chain without it, so of as many nodes as there are drafted tokens with it.
            candidates: what is offered after its last node, at most `offered`, the best first.
        """


class PlannedChain(StoppingChain):
    """A chain whose length is planned before it is drafted, by what was accepted of those before it.

    A round in which nothing was drafted teaches nothing.
    """

    purpose = "lengths by what was accepted"

    @property
    @abstractmethod
    def planned(self) -> int:
        """Tokens that the next chain may have, at least 1."""

    @abstractmethod
    def learn(self, drafted: int, accepted: int) -> None:
        """Take note of a round.

        Args:
            drafted: tokens that were, at least 1; fewer than planned where the text's end or the drafter allowed fewer.
            accepted: how many of them were.
        """

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return len(tree) >= self.planned

    def observe(self, round_: Round) -> None:
        drafted = len(round_.tree) - 1
        if drafted:
            self.learn(drafted, round_.accepted)
