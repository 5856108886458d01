"""Chains: no branching at all."""

import attrs
from attrs.validators import ge

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, TreePolicy
from talon_core.searching import searched
from talon_core.tree import TokenTree
from talon_strategies.options import plus_one, whole_number


@attrs.frozen
class Chain(TreePolicy):
    """Drafts the best next token `length` times in a row (Leviathan et al., arXiv 2211.17192; `length` is their gamma).

    Attributes:
        length: drafted tokens, at least 1; one draft pass each.
    """

    name = "chain"
    purpose = "fixed shapes"
    paper = "arXiv 2211.17192"
    length: int = attrs.field(default=5, validator=[whole_number, ge(1)], metadata=searched(1, 12))
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: plus_one(self.length), takes_self=True))

    def width(self, tree: TokenTree) -> int:
        return 1

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1))
