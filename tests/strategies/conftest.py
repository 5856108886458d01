"""What the tests of policies share: a whole round without limits, and trees read as sets of paths."""

from collections.abc import Callable

import pytest

from talon_core.choices import SeededChoices
from talon_core.drafting import Drafted, DraftLimits, draft_tree
from talon_core.policy import TreePolicy
from talon_core.testing import TableDrafter
from talon_core.tree import TokenTree


@pytest.fixture(scope="session")
def draft() -> Callable[[TreePolicy, TableDrafter], Drafted]:
    """Drafts one tree from root token 0, as deep as the policy likes."""

    def draft(policy: TreePolicy, drafter: TableDrafter) -> Drafted:
        return draft_tree(policy, drafter, 0, DraftLimits(drafter.vocab_size, max_depth=10**6), SeededChoices(0))

    return draft


@pytest.fixture(scope="session")
def paths() -> Callable[[TokenTree], set[tuple[int, ...]]]:
    """The tokens along the path to each node of a tree, the root's first."""

    def paths(tree: TokenTree) -> set[tuple[int, ...]]:
        return {tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))}

    return paths
