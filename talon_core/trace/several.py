"""The columns of several texts side by side, so that rows of all of them are looked up at once."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.trace.columns import NARROW, NO_ROW, Rows, TextTrace
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import places_of

PADDING = -1
"""In the place of a token that is none."""


@attrs.frozen(eq=False)
class ByText:
    """Those of some rows that are of one text.

    Attributes:
        columns: of the text.
        places: where they stand among all of them.
        rows: which they are of the text, shape `(rows,)`.
    """

    columns: Rows
    places: slice | IntArray
    rows: IntArray


class SeveralTexts:
    """Texts with rows. Their rows are numbered through, text by text, and so are their positions.

    What was offered stays on disk until it is looked at; what tells which row is a node's is read at once.

    Args:
        texts: of one trace, at least one.

    Raises:
        ValueError: if more candidates are kept of the rows of one than of another.
    """

    def __init__(self, texts: Sequence[TextTrace]) -> None:
        self.texts = texts
        self.rows = [_rows_of(text) for text in texts]
        self.width = self.rows[0].width
        for text, rows in zip(texts, self.rows, strict=True):
            if rows.width != self.width:
                raise ValueError(
                    f"prompt {text.prompt} of the set '{text.set}' has {rows.width} candidates a row, and others have "
                    f"{self.width}; a file of the trace was changed"
                )
        self.first_rows = _starts([len(rows.above) for rows in self.rows])
        self.first_positions = _starts([text.positions for text in texts])
        self._checked = np.zeros(self.first_rows[-1], dtype=np.int64)  # how many candidates of each row

    @cached_property
    def roots(self) -> IntArray:
        """The row of the root at each position, `NO_ROW` where nothing was drafted, shape `(positions,)`."""
        found = []
        for first, rows in zip(self.first_rows.tolist(), self.rows, strict=False):
            starts = rows.starts.astype(np.int64)
            found.append(np.where(starts[1:] > starts[:-1], starts[:-1] + first, NO_ROW))
        return np.concatenate(found)

    @cached_property
    def passes(self) -> IntArray:
        """Draft passes of each layer at each position, shape `(positions, layers)`."""
        most = max(rows.passes.shape[1] for rows in self.rows)
        found = np.zeros((self.first_positions[-1], most), dtype=np.int64)
        for first, rows in zip(self.first_positions.tolist(), self.rows, strict=False):
            found[first : first + len(rows.passes), : rows.passes.shape[1]] = rows.passes
        return found

    @cached_property
    def _above(self) -> IntArray:
        """The row above each, and for a root its own: so they rise."""
        found = []
        for first, rows in zip(self.first_rows.tolist(), self.rows, strict=False):
            above = rows.above.astype(np.int64)
            (roots,) = (above < 0).nonzero()
            above[roots] = roots
            above += first
            found.append(above)
        return np.concatenate(found)

    @cached_property
    def _nodes(self) -> NDArray[Any]:
        return np.concatenate([rows.nodes for rows in self.rows])

    def find(self, above: IntArray, tokens: IntArray) -> IntArray:
        """The rows of nodes that are no roots, `NO_ROW` for those that have none; see `Rows.find`.

        Args:
            above: the rows of their parents, shape `(nodes,)`; below a node without a row there is none.
            tokens: their own, shape `(nodes,)`.
        """
        firsts = self._above.searchsorted(above)
        firsts += (firsts == above) & (above != NO_ROW)  # a root stands before its children
        counts = self._above.searchsorted(above, side="right") - firsts
        counts[above == NO_ROW] = 0
        places = places_of(firsts, counts)
        (same,) = (self._nodes[places] == np.repeat(tokens, counts)).nonzero()
        whose = np.repeat(np.arange(len(above)), counts)[same]
        found = np.full(len(above), NO_ROW)
        found[whose[::-1]] = places[same][::-1]  # the first, if there were two
        return found

    def by_text(self, rows: IntArray) -> "list[ByText]":
        """The texts of some rows; those of a text stand behind those of the texts before it, `NO_ROW` anywhere."""
        there = None
        if (rows == NO_ROW).any():
            (there,) = (rows != NO_ROW).nonzero()
            rows = rows[there]
        bounds, firsts = rows.searchsorted(self.first_rows).tolist(), self.first_rows.tolist()
        return [
            ByText(
                columns,
                slice(begin, end) if there is None else there[begin:end],
                rows[begin:end] - first,
            )
            for columns, first, begin, end in zip(self.rows, firsts, bounds, bounds[1:], strict=False)
            if begin < end
        ]

    def logp(self, of: "Sequence[ByText]", count: int, width: int) -> FloatArray:
        """Log-probabilities of the best candidates of some rows.

        Args:
            of: the rows.
            count: how many they are.
            width: candidates of each.

        Returns:
            Minus infinity for padding and where there is no row, shape `(rows, width)`, float64.
        """
        found = np.full((count, width), -np.inf)
        for own in of:
            found[own.places] = own.columns.logp.take(own.rows, axis=0)[:, :width]
        return found

    def tokens(self, of: "Sequence[ByText]", count: int, width: int) -> IntArray:
        """Their tokens, -1 for padding and where there is no row; arguments as for `logp`; int64."""
        found = np.full((count, width), PADDING)
        for own in of:
            found[own.places] = own.columns.tokens.take(own.rows, axis=0)[:, :width]
        return self._padded(found)

    def candidates(self, rows: IntArray, ranks: IntArray) -> tuple[IntArray, FloatArray]:
        """Single candidates.

        Args:
            rows: of each, as for `by_text`, shape `(candidates,)`.
            ranks: its place in the row, shape `(candidates,)`.

        Returns:
            Tokens and log-probabilities, -1 and minus infinity for padding and where there is no row.
        """
        tokens, logp = np.full(len(rows), PADDING), np.full(len(rows), -np.inf)
        for own in self.by_text(rows):
            flat = own.rows * self.width + ranks[own.places]
            tokens[own.places] = own.columns.tokens.ravel().take(flat)
            logp[own.places] = own.columns.logp.ravel().take(flat)
        return self._padded(tokens), logp

    def _padded(self, tokens: IntArray) -> IntArray:
        if self.rows[0].tokens.dtype == np.uint16:
            tokens[tokens == NARROW] = PADDING
        return tokens

    @cached_property
    def before(self) -> IntArray:
        """The token before each position, shape `(positions,)`, int64."""
        return np.concatenate([text.ids[text.prompt_tokens - 1 : -1] for text in self.texts])

    def ahead(self, positions: IntArray, depths: IntArray) -> IntArray:
        """The tokens that stand as deep behind some positions; where a round cannot end any more, -1."""
        found: IntArray = self._ahead[np.minimum(positions + depths - 1, len(self._ahead) - 1)]
        return found

    @cached_property
    def _ahead(self) -> IntArray:
        # the last token of a text is no drafted one; so no path leads into the text behind it
        return np.concatenate([np.append(text.ids[text.prompt_tokens : -1], PADDING) for text in self.texts])

    @cached_property
    def whole(self) -> NDArray[np.bool_]:
        """Whether a row holds all that the drafter knows there, shape `(rows,)`."""
        return np.concatenate([rows.whole for rows in self.rows])

    def check(self, rows: IntArray, width: int, vocab_size: int) -> None:
        """Refuse what was offered if it was changed since it was recorded; see `Rows.check`.

        Args:
            rows: that were looked at.
            width: how many of their candidates.
            vocab_size: the target's.

        Raises:
            ValueError: if it was; the sentence names the text.
        """
        unknown = rows[rows != NO_ROW]
        unknown = unknown[self._checked[unknown] < width]
        unknown.sort()
        for own in self.by_text(unknown):
            try:
                own.columns.check(own.rows, width, vocab_size)
            except ValueError as error:
                text = self.texts[self.rows.index(own.columns)]
                raise ValueError(f"prompt {text.prompt} of the set '{text.set}': {error}") from error
        self._checked[unknown] = width


def _starts(counts: Sequence[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _rows_of(text: TextTrace) -> Rows:
    assert text.rows is not None
    return text.rows
