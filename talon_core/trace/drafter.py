"""A drafter that answers from a trace."""

from collections.abc import Mapping, Sequence

import numpy as np

from talon_core.candidates import Candidates, Law, NoLaws
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.trace.columns import NO_ROW, TextTrace, place
from talon_core.tree import FloatArray, IntArray, TokenTree


class TraceDrafter(Drafter):
    """Offers what was offered when the text was recorded; one text at a time, in slot 0.

    Args:
        text: recorded with rows.
        max_depth: the drafter's own.
    """

    def __init__(self, text: TextTrace, max_depth: int | None) -> None:
        assert text.rows is not None
        self.max_depth = max_depth
        self._missing = 0
        self._cut: set[int] = set()  # nodes whose rows hold less than was asked for, and than the drafter knew
        self._text, self._rows = text, text.rows
        self._position = 0
        self._row_of: dict[int, int] = {}

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._position, self._row_of, self._cut, self._missing = 0, {}, set(), 0

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        (frontier,) = frontiers
        tree, rows = frontier.tree, self._rows
        if len(tree) == 1:
            self._row_of, self._cut, self._missing = {0: rows.root(self._position)}, set(), 0
        asked = self._asked(tree, frontier.nodes)
        width = min(frontier.width, rows.width)
        known = [row for row in asked if row != NO_ROW]
        self._missing += len(asked) - len(known)
        if frontier.width > rows.width:
            pairs = zip(frontier.nodes.tolist(), asked, rows.whole[asked].tolist(), strict=True)
            self._cut.update(node for node, row, whole in pairs if row != NO_ROW and not whole)
        tokens, logp = rows.offered(asked, width)
        if len(known) < len(asked):
            missing = np.array(asked) == NO_ROW
            tokens[missing], logp[missing] = -1, -np.inf
        path_logp = tree.path_logp[frontier.nodes][:, None] + logp
        candidates = Candidates(frontier.nodes, tokens, logp, path_logp, self._law(asked))
        layer = int(tree.depths[frontier.nodes[0]])
        passes = rows.passes[self._position]
        return Proposed([candidates], int(passes[layer]) if layer < len(passes) else 0)

    def _asked(self, tree: TokenTree, nodes: IntArray) -> list[int]:
        """The rows of nodes of the current tree; those of their parents are known."""
        if len(tree) == 1:
            return [self._row_of[0]]
        row_of, below = self._row_of, self._rows.below(self._position)
        above = [row_of[parent] for parent in tree.parents[nodes].tolist()]
        held = zip(above, tree.tokens[nodes].tolist(), strict=True)
        asked = [NO_ROW if row == NO_ROW else below.get(place(row, token), NO_ROW) for row, token in held]
        row_of.update(zip(nodes.tolist(), asked, strict=True))
        return asked

    def _law(self, asked: list[int]) -> Law:
        law = self._text.law
        if law is None:
            return NoLaws()

        def of(row: int) -> FloatArray:
            if asked[row] == NO_ROW:
                raise ValueError("a node that was not recorded has no law")
            return law("drafter", asked[row])

        return of

    def row(self, path: Sequence[int]) -> int:
        """The row of the node at the end of some tokens behind the current root; `NO_ROW` if there is none."""
        row, below = self._rows.root(self._position), self._rows.below(self._position)
        for token in path:
            row = NO_ROW if row == NO_ROW else below.get(place(row, token), NO_ROW)
        return row

    def outside(self, drafted: TokenTree) -> int:
        """Questions of the current tree that the trace does not answer.

        They are about nodes that were not recorded, which get no answer, and about rows of which more was asked for
        than was recorded: those count where the tree took the last candidate, as it might have taken more.

        Args:
            drafted: the tree as it was drafted.
        """
        if not self._cut:
            return self._missing
        nodes = [*self._cut]
        last, _ = self._rows.offered([self._row_of[node] for node in nodes], self._rows.width)
        went_on = (drafted.child(node, token) for node, token in zip(nodes, last[:, -1].tolist(), strict=True))
        return self._missing + sum(child is not None for child in went_on)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._position += len(committed[0].tokens)
