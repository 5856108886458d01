"""A drafter that answers from a trace."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from talon_core.candidates import Candidates, Law
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.errors import is_whole, written
from talon_core.trace.columns import NO_ROW, TextTrace
from talon_core.tree import FloatArray, IntArray, TokenTree

NO_TOKEN = -1
"""In the place of a token that is none."""


def no_law(row: int) -> NoReturn:
    """The handle of laws where none were recorded."""
    raise ValueError(f"the law of frontier row {written(row)} is asked for, and the trace has none; record with --laws")


class TraceDrafter(Drafter):
    """Offers what was offered when the text was recorded; one text at a time, in slot 0.

    It was checked then, and is believed now; `check` tells whether somebody has changed it since.

    Args:
        text: recorded with rows.
        max_depth: the drafter's own.
        takes_paths: likewise.

    Attributes:
        unanswered: nodes of the text's trees that it was asked at and knows nothing of, or less than was asked for.
        law_asked: whether somebody has asked for a law, where none were recorded.
    """

    def __init__(self, text: TextTrace, max_depth: int | None, takes_paths: bool = False) -> None:
        assert text.rows is not None
        self.takes_paths = takes_paths
        self.max_depth = max_depth
        self._text, self._rows = text, text.rows
        self._position = 0
        self._looked_at: list[int] = []
        self._widest = 0  # of what was offered
        self.unanswered, self.law_asked = 0, False
        self._begin()

    def _begin(self) -> None:
        """A new tree."""
        self._row_of: dict[int, int] = {}
        self._missing = 0
        self._cut: set[int] = set()  # nodes whose rows hold less than was asked for, and than the drafter knew

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._position, self._looked_at, self._widest = 0, [], 0
        self.unanswered, self.law_asked = 0, False
        self._begin()

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        (frontier,) = frontiers
        tree, nodes, rows, position = frontier.tree, frontier.nodes, self._rows, self._position
        if len(tree) == 1:
            self._begin()  # a tree may be drafted again
            asked = [rows.root(position)]
        elif self.takes_paths:
            asked = self._along(tree, nodes)
        else:
            above = [self._row_of[parent] for parent in tree.parents.take(nodes).tolist()]
            asked = rows.find(position, above, tree.tokens.take(nodes).tolist())
        self._looked_at += asked
        self._row_of.update(zip(nodes.tolist(), asked, strict=True))
        width = min(frontier.width, rows.width)
        self._widest = max(self._widest, width)
        tokens, logp = rows.offered(asked, width)
        if NO_ROW in asked:
            missing = np.array(asked) == NO_ROW
            tokens[missing], logp[missing] = -1, -np.inf
            self._missing += asked.count(NO_ROW)
            self.unanswered += asked.count(NO_ROW)
        if frontier.width > width:
            pairs = zip(nodes.tolist(), asked, rows.whole[asked].tolist(), strict=True)
            cut = {node for node, row, whole in pairs if row != NO_ROW and not whole}
            self._cut |= cut
            self.unanswered += len(cut)
        if width > 1 and tokens[:, -1].max() < 0:  # a drafter that knows no more offers no more
            known = max(1, int((tokens >= 0).sum(axis=1).max()))
            tokens, logp = tokens[:, :known], logp[:, :known]
        path_logp = tree.path_logp.take(nodes)[:, None] + logp
        layer = tree.depths.item(nodes.item(0))
        passes = rows.passes.item(position, layer) if layer < rows.passes.shape[1] else 0
        return Proposed([Candidates(nodes, tokens, logp, path_logp, self._law(asked))], passes)

    def _along(self, tree: TokenTree, nodes: IntArray) -> list[int]:
        """The rows of nodes whose parents may stand before them."""
        if not nodes.item(0):
            self._begin()
        asked: list[int] = []
        for node in nodes.tolist():
            if node:
                above = [self._row_of[int(tree.parents[node])]]
                asked += self._rows.find(self._position, above, [int(tree.tokens[node])])
            else:
                asked.append(self._rows.root(self._position))
            self._row_of[node] = asked[-1]
        return asked

    def _law(self, asked: list[int]) -> Law:
        law = self._text.law
        if law is None:
            return self._no_law

        def of(row: int) -> FloatArray:
            if not is_whole(row) or row not in range(len(asked)) or asked[row] == NO_ROW:
                raise ValueError(f"frontier row {written(row)} was not recorded, and has no law")
            return law("drafter", asked[row])

        return of

    def _no_law(self, row: int) -> FloatArray:
        self.law_asked = True
        return no_law(row)

    def row(self, path: Sequence[int]) -> int:
        """The row of the node at the end of some tokens behind the current root; `NO_ROW` if there is none."""
        row = self._rows.root(self._position)
        for token in path:
            (row,) = self._rows.find(self._position, [row], [token])
        return row

    def check(self, vocab_size: int) -> None:
        """Refuse what was offered since the text was opened, if it was changed; see `Rows.check`.

        Raises:
            ValueError: if it was; the sentence names the text.
        """
        try:
            self._rows.check([*{*self._looked_at} - {NO_ROW}], self._widest, vocab_size)
        except ValueError as error:
            raise ValueError(f"prompt {self._text.prompt} of the set '{self._text.set}': {error}") from error

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
        offered, _ = self._rows.offered([self._row_of[node] for node in nodes], self._rows.width)
        last = np.full(len(drafted), NO_TOKEN)
        last[nodes] = offered[:, -1]
        return self._missing + int(np.count_nonzero(drafted.tokens[1:] == last[drafted.parents[1:]]))

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self.go_on(len(committed[0].tokens))

    def go_on(self, tokens: int) -> None:
        """So many tokens were committed."""
        self._position += tokens
        self._begin()  # the next tree may be a root that is not drafted from
