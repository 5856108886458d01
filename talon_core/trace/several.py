"""The columns of several texts side by side, so that rows of all of them are looked up at once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talon_core.trace.columns import NO_ROW, TextTrace, check_offered, padding, tokens_of
from talon_core.tree import IntArray
from talon_core.tree_arrays import places_of

PADDING = -1
"""In the place of a token that is none."""


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
        self.rows = [text.recorded for text in texts]
        self.width = self.rows[0].width
        for text, rows in zip(texts, self.rows, strict=True):
            if rows.width != self.width:
                raise ValueError(
                    f"prompt {text.prompt} of the set '{text.set}' has {rows.width} candidates a row, and others have "
                    f"{self.width}; a file of the trace was changed"
                )
        self.first_rows = _starts([len(rows.above) for rows in self.rows])
        self.first_positions = _starts([text.positions for text in texts])
        self._checked = np.zeros(self.first_rows[-1], dtype=np.uint16)  # how many candidates of each row

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
    def _nodes(self) -> NDArray[Any]:
        return np.concatenate([rows.nodes for rows in self.rows])

    @cached_property
    def _order(self) -> NDArray[Any]:
        """What rises from row to row, shape `(rows,)`: 2a + 1 of one below row a, 2r of row r where that is a root."""
        kind = np.int32 if 2 * self.first_rows[-1] < np.iinfo(np.int32).max else np.int64
        order = np.empty(self.first_rows[-1], dtype=kind)
        for begin, rows in zip(self.first_rows.tolist(), self.rows, strict=False):
            own = order[begin : begin + len(rows.above)]
            np.multiply(rows.above, 2, out=own, casting="unsafe")
            own += 2 * begin + 1
        roots = self.roots[self.roots != NO_ROW]
        order[roots] = 2 * roots
        return order

    def find(self, above: IntArray, tokens: IntArray) -> IntArray:
        """The rows of nodes that are no roots, `NO_ROW` for those that have none; see `Rows.find`.

        Args:
            above: the rows of their parents, shape `(nodes,)`; below a node without a row there is none.
            tokens: their own, shape `(nodes,)`.
        """
        wanted = 2 * np.concatenate([above, above]).astype(self._order.dtype) + 1
        wanted[len(above) :] += 1
        firsts, ends = np.split(self._order.searchsorted(wanted), 2)
        counts = ends - firsts
        counts[above == NO_ROW] = 0
        places = places_of(firsts, counts)
        (same,) = (self._nodes[places] == np.repeat(tokens, counts)).nonzero()
        whose = np.repeat(np.arange(len(above)), counts)[same]
        found = np.full(len(above), NO_ROW)
        found[whose[::-1]] = places[same][::-1]  # the first, if there were two
        return found

    @cached_property
    def _kinds(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """The types that hold the tokens and the log-probabilities of all texts; each is written in its smallest."""
        tokens = {rows.tokens.dtype for rows in self.rows}
        return tokens.pop() if len(tokens) == 1 else np.dtype(np.int32), np.result_type(
            *(rows.logp for rows in self.rows)
        )

    def offered(self, rows: IntArray, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The best candidates of some rows, as they stand in the file; `tokens_of` reads the first of these.

        Args:
            rows: shape `(rows,)`; those of a text stand behind those of the texts before it, `NO_ROW` anywhere.
            width: candidates of each.

        Returns:
            Tokens and log-probabilities, padding alone where there is no row, shape `(rows, width)`.
        """
        missing = rows == NO_ROW
        some = bool(missing.any())
        if some:
            rows = np.where(missing, np.maximum.accumulate(rows).clip(0), rows)  # another row of the same text
        tokens, logp = (np.empty((len(rows), width), kind) for kind in self._kinds)
        for text, begin, end in self.by_text(rows):
            own, of = rows[begin:end] - self.first_rows[text], self.rows[text]
            found = of.tokens.take(own, axis=0)[:, :width]
            tokens[begin:end] = found if found.dtype == tokens.dtype else tokens_of(found)
            logp[begin:end] = of.logp.take(own, axis=0)[:, :width]
        if some:
            tokens[missing], logp[missing] = padding(tokens.dtype), -np.inf
        return tokens, logp

    def by_text(self, rows: IntArray) -> list[tuple[int, int, int]]:
        """The texts of some rows: which, and where their rows begin and end."""
        bounds = rows.searchsorted(self.first_rows).tolist()
        return [(text, *ends) for text, ends in enumerate(pairwise(bounds)) if ends[0] < ends[1]]

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
        try:
            check_offered(*self.offered(unknown, width), vocab_size)
        except ValueError:
            for text, begin, end in self.by_text(unknown):
                with self._naming(text):
                    self.rows[text].check(unknown[begin:end] - self.first_rows[text], width, vocab_size)
            raise
        new = unknown[self._checked[unknown] == 0]
        for text, begin, end in self.by_text(new):
            with self._naming(text):
                self.rows[text].check_sums(new[begin:end] - self.first_rows[text])
        self._checked[unknown] = min(width, np.iinfo(np.uint16).max)  # of more they are checked again

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Errors inside are about a text."""
        text = self.texts[number]
        try:
            yield
        except ValueError as error:
            raise ValueError(f"prompt {text.prompt} of the set '{text.set}': {error}") from error


def _starts(counts: Sequence[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
