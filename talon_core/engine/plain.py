"""Plain decoding: a policy whose trees are their roots, and a drafter that drafts nothing."""

from collections.abc import Mapping, Sequence
from sys import maxsize

import attrs

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.policy import Growth
from talon_core.tree import IntArray, TokenTree


@attrs.frozen
class RootAlone(ForestGrower):
    """Verifies the root alone: one token a pass of the target."""

    name = "none"
    budget: int = attrs.field(default=1, init=False)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(0))

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        return ForestGrowth(candidates.best(0))

    def rests(self) -> int:
        return maxsize


class NoDrafter(Drafter):
    """Drafts no token after any root, so that it is never asked for one."""

    max_depth = 0

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        """It needs no prompt."""

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        return Proposed([Candidates.unknown(one.nodes) for one in frontiers])

    def commit(self, committed: Mapping[int, Committed]) -> None:
        """It remembers nothing."""
