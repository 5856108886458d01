"""A drafter given by a table, for tests that need to know its laws, and a target's laws given in the same way."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Prompt
from talon_core.laws import Laws, check_node
from talon_core.tree import FloatArray, IntArray, TokenTree


def _laws(given: Any) -> FloatArray:
    laws: FloatArray = np.array(given, dtype=np.float64, ndmin=2)
    laws.flags.writeable = False
    return laws


def path_number(path: Iterable[int]) -> int:
    """A number that hangs on every token of a path, for tables to be looked up by."""
    mixed = 0
    for token in path:
        mixed = (mixed * 31 + token + 1) % 2**32
    return mixed


class Memoryless(Drafter):
    """A drafter that looks at nothing but each tree's own paths."""

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """It needs no prompt."""

    def propose(
        self,
        trees: Sequence[TokenTree],
        frontiers: Sequence[IntArray],
        widths: Sequence[int],
        choices: Sequence[Choices],
    ) -> list[Candidates]:
        return [self.offer(*each) for each in zip(trees, frontiers, widths, choices, strict=True)]

    @abstractmethod
    def offer(self, tree: TokenTree, frontier: IntArray, width: int, choices: Choices) -> Candidates:
        """As `propose`, for one tree."""

    def commit(self, committed: Sequence[Committed]) -> None:
        """It remembers nothing."""


@attrs.frozen(eq=False)
class TableDrafter(Memoryless):
    """Draws the law after each path from a table, always the same one after the same path. All it returns is read only.

    Attributes:
        laws: the table, shape `(tables, vocab)`, float64, each row summing to 1. Which row holds after a path is
            arbitrary (`path_number`), not the last token's. With one row the drafter does not look at the path at all.
        knows: most candidates it offers after a node; None for all that have some probability.
        fills: whether rows are padded to the width asked for; otherwise to the longest of them.
        excess: added to each log-probability, as rounding in half precision may do, at least 0.
    """

    laws: FloatArray = attrs.field(converter=_laws)
    knows: int | None = None
    fills: bool = True
    excess: float = 0.0

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.laws.shape[1])

    def law_after(self, path: Iterable[int]) -> FloatArray:
        """The law after the tokens of `path`, the root's first, shape `(vocab,)`, float64."""
        law: FloatArray = self.laws[path_number(path) % len(self.laws)]
        return law

    def offer(self, tree: TokenTree, frontier: IntArray, width: int, choices: Choices) -> Candidates:
        if not len(frontier):  # this tree is finished; others of the batch are not
            none = np.empty((0, 1))
            return Candidates(frontier, none.astype(np.int64), none, none, choices)
        laws = np.stack([self.law_after(tree.tokens[tree.path(node)].tolist()) for node in frontier.tolist()])
        known = width if self.knows is None else min(width, self.knows)
        tokens = np.argsort(-laws, axis=1, kind="stable")[:, :known]
        probs = np.take_along_axis(laws, tokens, axis=1)
        if not self.fills:
            longest = max(1, int((probs > 0).sum(axis=1).max()))
            tokens, probs = tokens[:, :longest], probs[:, :longest]
            width = longest
        padding = ((0, 0), (0, width - tokens.shape[1]))
        tokens = np.pad(np.where(probs > 0, tokens, -1), padding, constant_values=-1)
        with np.errstate(divide="ignore"):
            logp = np.pad(np.log(probs) + self.excess, padding, constant_values=-np.inf)
        path_logp = tree.path_logp[frontier][:, None] + logp
        for array in (tokens, logp, path_logp):
            array.flags.writeable = False
        return Candidates(frontier, tokens, logp, path_logp, choices, law=lambda row: laws[row])


class TableLaws(Laws):
    """The target's laws at the nodes of a tree, from a table as drafters have it; remembers where they were asked for.

    Args:
        table: its `law_after` is the target's law.
        tree: the verified tree.
        end: the token that ends the text; None if none does.

    Attributes:
        asked: the nodes whose law was asked for, in this order.
    """

    def __init__(self, table: TableDrafter, tree: TokenTree, end: int | None = None) -> None:
        self.asked: list[int] = []
        self._table, self._tree, self._end = table, tree, end

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        self.asked.append(node)
        return self._table.law_after(self._tree.tokens[self._tree.path(node)].tolist())

    def ends(self, token: int) -> bool:
        return token == self._end
