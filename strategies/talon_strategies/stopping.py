"""What policies that decide how long a chain becomes have in common."""

from abc import abstractmethod
from typing import ClassVar

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, TreePolicy
from talon_core.tree import TokenTree
from talon_strategies.drawing import NOTHING
from talon_strategies.options import plus_one


class StoppingChain(TreePolicy):
    """A chain of the best next tokens, at most `length`, that ends with the first one after which `stops` is true.

    So at least one token is drafted, and the one that `stops` judges is part of the chain.
    """

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
