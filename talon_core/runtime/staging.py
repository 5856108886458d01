"""What drafters with a cache of their own keep track of: which nodes of a growing tree are in it, and where."""

import numpy as np

from talon_core.tree import IntArray, TokenTree

SPARE_ROWS = 256
"""Rows of a drafter's cache for trees; more are made where a tree is larger."""

MANY_PENDING = 16
"""Tokens that wait, as drafting has paused, of which more are read as a prompt is. So few take about what one takes."""


class StagedSlot:
    """One sequence of a drafter with a cache: what waits to be run, and what this round has put behind it.

    Attributes:
        pending: committed tokens that are not in the cache; the last is the root.
        unread: whether what is pending is a part of the prompt, or is read like one; to be set by a drafter that leaves
            it until somebody asks for a draft.
        staged: the pending tokens as a chain, and under its end the nodes drafted from; None before the first layer.
        staged_at: node of the draft tree to node of `staged`.
    """

    def __init__(self, pending: list[int]) -> None:
        self.restart(pending)

    def restart(self, pending: list[int]) -> None:
        """Forget what is staged; these tokens wait."""
        self.pending = pending
        self.unread = False
        self.staged: TokenTree | None = None
        self.staged_at: dict[int, int] = {}

    @property
    def waits_long(self) -> bool:
        """Whether what is pending is read as a prompt is, before it is drafted from."""
        return self.staged is None and (self.unread or len(self.pending) > MANY_PENDING) and len(self.pending) > 1

    def stage(self, tree: TokenTree, frontier: IntArray) -> tuple[TokenTree, int]:
        """Add the frontier to what is staged; returns all of it and the index of the first new node."""
        if self.staged is None:
            chain = np.arange(-1, len(self.pending) - 1)
            self.staged = TokenTree(self.pending, chain, np.zeros(len(chain)))
            self.staged_at = {0: len(chain) - 1}
            first, frontier = 0, frontier[frontier > 0]
        else:
            first = len(self.staged)
        parents = []
        for place, node in enumerate(frontier.tolist(), start=len(self.staged)):  # a parent may be one of them
            parents.append(self.staged_at[int(tree.parents[node])])
            self.staged_at[node] = place
        if parents:
            added = np.array(parents, dtype=np.int64)
            self.staged = self.staged.extend(tree.tokens[frontier], added, np.zeros(len(parents)))
        return self.staged, first
