"""What is kept of a drafter's answers: rows by the path below an outcome, outcomes by the text that they rest on."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import attrs
import numpy as np

from talon_core.candidates import Candidates, Law, NoLaws
from talon_core.tree import FloatArray, IntArray

Path = tuple[int, ...]
"""Tokens below a root, without its own."""


@attrs.frozen(eq=False)
class Row:
    """A drafter's answer at one node.

    Attributes:
        tokens: the likeliest next ones, best first, shape `(known,)`, int64; no padding.
        logp: their natural log-probabilities, same shape, float64.
        wanted: how many were asked for.
        law: the whole law, shape `(vocab,)`, float64; None where it was not asked for, or there is none.
    """

    tokens: IntArray
    logp: FloatArray
    wanted: int
    law: FloatArray | None = None

    @classmethod
    def of(cls, candidates: Candidates, row: int, wanted: int, laws: bool = False) -> "Row":
        """A row of what a drafter has offered.

        Args:
            candidates: what was offered.
            row: which one.
            wanted: how many were asked for.
            laws: keep its whole law, too, if there is one.
        """
        real = candidates.tokens[row] >= 0
        law = None
        if laws:
            try:
                law = candidates.law(row)
            except Exception:  # there is none, or what is wrong with it is found where somebody needs it
                law = None
        return cls(candidates.tokens[row][real], candidates.logp[row][real], wanted, law)

    def offered_law(self, vocab_size: int) -> FloatArray:
        """What was offered as a law, where the drafter's own cannot be had: any is right to draw from that is told.

        Shape `(vocab,)`, float64.

        Raises:
            ValueError: if nothing was offered: there is no law then.
        """
        if not len(self.tokens):
            raise ValueError("nothing is known after this node, so that there is no law to draw from")
        law: FloatArray = np.zeros(vocab_size)
        law[self.tokens] = np.exp(self.logp - self.logp.max())
        law /= law.sum()
        return law

    def answers(self, wanted: int) -> bool:
        """Whether the drafter would offer no more, if so many were wanted."""
        return wanted <= self.wanted or len(self.tokens) < self.wanted


Continuation = Mapping[Path, Row]
"""What is known below an outcome, by the path from its token."""


class Base(NamedTuple):
    """The text that something rests on.

    Attributes:
        opening: how often slots had been opened when the sequence got its own: it tells sequences apart.
        length: committed tokens, the prompt's among them.
    """

    opening: int
    length: int


@attrs.frozen(eq=False)
class Prepared:
    """What was prepared for one sequence.

    Attributes:
        base: the text before the outcome.
        below: what is known below outcomes, by the last accepted node, counted as in the tree that was drafted, and the
            token after it.
    """

    base: Base
    below: Mapping[tuple[int, int], Continuation]


def candidates_of(
    frontier: IntArray, path_logp: FloatArray, rows: Sequence[Row], width: int, law: Law | None = None
) -> Candidates:
    """Rows as the candidates of some nodes.

    Args:
        frontier: the nodes, shape `(frontier,)`, int64.
        path_logp: natural log-probabilities of the paths to them, same shape, float64.
        rows: one for each.
        width: most candidates a node.
        law: the handle of their whole laws; None where there are none.
    """
    columns = max(1, min(width, max(len(row.tokens) for row in rows)))
    tokens = np.full((len(rows), columns), -1, dtype=np.int64)
    logp = np.full((len(rows), columns), -np.inf)
    for place, row in enumerate(rows):
        count = min(columns, len(row.tokens))
        tokens[place, :count], logp[place, :count] = row.tokens[:count], row.logp[:count]
    return Candidates(frontier, tokens, logp, path_logp[:, None] + logp, law if law is not None else NoLaws())
