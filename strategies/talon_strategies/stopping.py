"""What policies that decide how long a chain becomes have in common."""

from abc import abstractmethod
from functools import cache
from typing import ClassVar

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.forest_planner import CountingPlanner, RoundCounts, TreePlan
from talon_core.policy import Growth, TreePolicy
from talon_core.tree import IntArray, TokenTree
from talon_strategies.drawing import NOTHING
from talon_strategies.options import plus_one
from talon_strategies.pooled import Pool


class StoppingChain(TreePolicy):
    """A chain of the best next tokens, at most `length`, that ends with the first one after which `stops` is true.

    So at least one token is drafted, and the one that `stops` judges is part of the chain.
    """

    purpose = "chains that stop by confidence"
    hooks = ("stops",)

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


class SteadyChain(StoppingChain, ForestGrower):  # pyright: ignore[reportIncompatibleVariableOverride]  # of `budget`
    """A chain that ends by what is known of its nodes alone, whatever became of those before it.

    A subclass says once, for one chain and for many, which of them end: NumPy's functions take both.
    """

    @abstractmethod
    def ends(self, nodes: IntArray, pool: Pool) -> NDArray[np.bool_]:
        """Whether the best candidate of each row is the last token of its chain.

        Args:
            nodes: of each chain without it, shape `(rows,)`.
            pool: what is offered after the last node of each, a row for each chain.

        Returns:
            Shape `(rows,)`.
        """

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return bool(self.ends(np.array([len(tree)]), candidates)[0])

    def widths(self, forest: Forest) -> Count:
        return self.offered

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        chosen = candidates.best(1)
        ended = self.ends(forest.sizes[candidates.trees], candidates)
        return ForestGrowth(chosen, len(forest) + np.flatnonzero(~ended[chosen // candidates.width]))


@attrs.frozen(cache_hash=True)
class PlainChain(SteadyChain):
    """A chain that nothing ends but its length: what a chain is whose length is planned, as far as it is drafted.

    Attributes:
        length: drafted tokens, at least 1.
        offered: as of the policy that has planned it.
    """

    name = "plain-chain"
    length: int
    offered: int = 1  # type: ignore[misc]  # of a class in other policies

    def ends(self, nodes: IntArray, pool: Pool) -> NDArray[np.bool_]:
        ended: NDArray[np.bool_] = nodes >= self.length
        return ended


@cache
def plain_chain(length: int, offered: int, planned: int | None = None) -> TreePlan:
    """The plan of a `PlainChain` of `planned` tokens at most."""
    return TreePlan(PlainChain(length, offered), planned)


class PlannedChain(StoppingChain, CountingPlanner):  # pyright: ignore[reportIncompatibleVariableOverride]  # of `budget`
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

    def plan(self) -> TreePlan:
        return plain_chain(self.length, self.offered, self.planned)

    def observe_counts(self, counts: RoundCounts) -> None:
        if counts.nodes > 1:
            self.learn(counts.nodes - 1, counts.accepted)
