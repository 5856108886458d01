"""Whole laws of several texts side by side, and draws from many of them at once."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from talon_core.choices import BLOCK, SeededChoices
from talon_core.forest import ForestCandidates
from talon_core.forest_drawer import ForestDraws, ForestLaws, check_rows
from talon_core.trace.columns import NO_ROW
from talon_core.trace.law_sums import TARGET, Layout, weights
from talon_core.trace.several import SeveralTexts
from talon_core.trace.text_laws import TextLaws
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import distinct, places_of, turns_of

AT_ONCE = 4096
"""Draws that are made together at most: each looks at some kilobytes."""

FEWEST_NUMBERS = 8
"""Of a tree, that are told at once."""


class NotKept(Exception):
    """What is asked is not known without reading laws in full: each text has to be tried by itself."""


class SeveralLaws:
    """The laws at the rows of several texts; rows are numbered as by `SeveralTexts`.

    Args:
        texts: whose they are.

    Attributes:
        texts: as given.
        layout: of the sums that are kept of them.

    Raises:
        NotKept: if none are kept of one of the texts, or others than of another one.
    """

    def __init__(self, texts: SeveralTexts) -> None:
        self.texts = texts
        laws = [text.law for text in texts.texts]
        self._laws: list[TextLaws] = [law for law in laws if law is not None and law.layout is not None]
        if len(self._laws) < len(laws) or len({law.layout for law in self._laws}) > 1:
            raise NotKept
        layout = self._laws[0].layout
        assert layout is not None
        self.layout: Layout = layout

    def temperature(self, wanted: float) -> int:
        """Which of the temperatures is this one.

        Raises:
            NotKept: if nothing is kept of it.
        """
        if wanted not in self.layout.temperatures:
            raise NotKept
        return self.layout.temperatures.index(wanted)

    def sums(self, rows: IntArray, part: int) -> FloatArray:
        """A part of the sums of some rows, shape `(rows, numbers)`; those of a text stand together, as below."""
        found = np.empty((len(rows), self.layout.parts[part]))
        for own, laws, begin, end in self._by_text(rows):
            found[begin:end] = laws.sums(own, part)
        return found

    def blocks(self, name: str, rows: IntArray, blocks: IntArray) -> NDArray[np.float32]:
        """Blocks of laws, see `TextLaws.blocks`."""
        found = np.empty((len(rows), BLOCK), dtype=np.float32)
        for own, laws, begin, end in self._by_text(rows):
            found[begin:end] = laws.blocks(name, own, blocks[begin:end])
        return found

    def totals(self, name: str, rows: IntArray) -> FloatArray:
        """What laws add up to as they are kept, shape `(rows,)`."""
        found = np.empty(len(rows))
        for own, laws, begin, end in self._by_text(rows):
            found[begin:end] = laws.totals(name, own)
        return found

    def whole(self, name: str, row: int) -> FloatArray:
        """A whole law, see `TextLaws`."""
        text = int(self.texts.first_rows.searchsorted(row, side="right")) - 1
        return self._laws[text](name, row - int(self.texts.first_rows[text]))

    def _by_text(self, rows: IntArray) -> list[tuple[IntArray, TextLaws, int, int]]:
        first = self.texts.first_rows
        return [
            (rows[begin:end] - first[text], self._laws[text], begin, end)
            for text, begin, end in self.texts.by_text(rows)
        ]

    def of_target(self, rows: IntArray, tokens: IntArray) -> FloatArray:
        """The target's probabilities of tokens, one of each row, shape `(rows,)`."""
        parts = self.blocks("target", rows, tokens // BLOCK)
        found: FloatArray = parts[np.arange(len(rows)), tokens % BLOCK] / self.totals("target", rows)
        return found

    def of_drafter(self, temperature: int, rows: IntArray, tokens: IntArray) -> FloatArray:
        """What tokens have of the drafter's laws at a temperature, one of each row, in units of `weights`."""
        peaks = self.sums(rows, self.layout.drafter(temperature))[:, -1]
        own = self.weights(temperature, rows, tokens // BLOCK, peaks)
        return own[np.arange(len(rows)), tokens % BLOCK]

    def weights(self, temperature: int, rows: IntArray, blocks: IntArray, peaks: FloatArray) -> FloatArray:
        """Blocks of the drafter's laws at a temperature, shape `(rows, BLOCK)`; `peaks` are the largest of the laws."""
        total = self.totals("drafter", rows)[:, None]
        kept = self.blocks("drafter", rows, blocks)
        return weights(kept, total, peaks[:, None], self.layout.temperatures[temperature])

    def weights_of(self, temperature: int, rows: IntArray, of: IntArray, tokens: IntArray) -> FloatArray:
        """What tokens have of the drafter's laws at a temperature, in units of `weights`, shape `(tokens,)`.

        Args:
            temperature: which of those that are kept.
            rows: of the laws, shape `(laws,)`.
            of: the law of each token, rising, and so are the tokens of a law; shape `(tokens,)`.
            tokens: they, likewise.
        """
        block = tokens // BLOCK
        new = np.ones(len(of), dtype=bool)
        new[1:] = (of[1:] != of[:-1]) | (block[1:] != block[:-1])
        kept = self.blocks("drafter", rows[of[new]], block[new])[new.cumsum() - 1, tokens % BLOCK]
        peaks = self.sums(rows, self.layout.drafter(temperature))[:, -1]
        told = self.totals("drafter", rows)[of], peaks[of]
        return weights(kept, *told, self.layout.temperatures[temperature])

    def target_draws(self, rows: IntArray, numbers: FloatArray) -> IntArray:
        """What comes out of the target's laws, as `Choices.pick` finds it, one of each row, shape `(rows,)`."""
        ends = self.sums(rows, TARGET).cumsum(axis=1)
        totals = self.totals("target", rows)[:, None]

        def part(blocks: IntArray) -> FloatArray:
            found: FloatArray = self.blocks("target", rows, blocks) / totals
            return found

        return _picked(ends, part, numbers)[0]


def _picked(
    ends: FloatArray, part: Callable[[IntArray], FloatArray], numbers: FloatArray
) -> tuple[IntArray, FloatArray]:
    """What comes out of some laws, and what it has of them.

    Args:
        ends: what they add up to up to the end of each block, none is all zeros, shape `(laws, blocks)`.
        part: gives a block of each law, shape `(laws, BLOCK)`.
        numbers: of the draws, shape `(laws,)`.
    """
    rows = np.arange(len(ends))
    block, threshold = _first_above(ends, numbers * ends[:, -1])
    held = part(block)
    threshold = threshold - np.where(block > 0, ends[rows, block - 1], 0.0)
    place, _ = _first_above(held.cumsum(axis=1), threshold)
    return block * BLOCK + place, held[rows, place]


def _first_above(ends: FloatArray, threshold: FloatArray) -> tuple[IntArray, FloatArray]:
    """Where rising sums exceed a threshold first, as `choices._first_above`, and the threshold that was taken."""
    below = np.minimum(threshold, np.nextafter(ends[:, -1], -1.0))
    place: IntArray = (ends <= below[:, None]).sum(axis=1)
    return place, below


class Numbers:
    """The numbers with which trees at many positions of several texts draw.

    Args:
        choices: of each text.
        texts: in which of them each tree is, rising, shape `(trees,)`.
        places: at which position of its text, likewise.
    """

    def __init__(self, choices: Sequence[SeededChoices], texts: IntArray, places: IntArray) -> None:
        self._choices, self._texts, self._places = choices, texts, places
        self._told = np.empty((len(texts), 0))

    def at(self, trees: IntArray, turns: IntArray) -> FloatArray:
        """The numbers of some trees, one of each, shape `(trees,)`; the first has turn 0."""
        most = int(turns.max(initial=-1)) + 1
        if most > self._told.shape[1]:
            count = max(FEWEST_NUMBERS, most, 2 * self._told.shape[1])
            bounds = self._texts.searchsorted(np.arange(len(self._choices) + 1)).tolist()
            self._told = np.concatenate(
                [
                    own.numbers_at(self._places[first:end], count)
                    for own, first, end in zip(self._choices, bounds, bounds[1:], strict=False)
                ]
            )
        return self._told[trees, turns]


class DrawnFrom(ForestLaws):
    """The recorded laws of a drafter at a layer of a forest.

    Args:
        laws: of the texts.
        rows: of the frontier nodes, shape `(frontier,)`.
        candidates: likewise.
        numbers: with which the trees draw.
        used: how many each tree has used, shape `(trees,)`; it is written to.
    """

    def __init__(
        self, laws: SeveralLaws, rows: IntArray, candidates: ForestCandidates, numbers: Numbers, used: IntArray
    ) -> None:
        self.laws, self.rows, self.candidates, self.numbers, self.used = laws, rows, candidates, numbers, used
        self._made: list[SeveralDraws] = []

    def drawing(
        self, temperature: float = 1.0, *, replacement: bool = False, without: IntArray | None = None
    ) -> "SeveralDraws":
        out = np.empty(0, dtype=np.int64) if without is None else np.asarray(without, dtype=np.int64)
        self._made.append(SeveralDraws(self, self.laws.temperature(temperature), replacement, out))
        return self._made[-1]

    def close(self) -> None:
        """The layer is over: nothing more is drawn, and what that needs is not kept."""
        for one in self._made:
            one.close()


class SeveralDraws(ForestDraws):
    """Draws from recorded laws.

    Args:
        source: whose they are.
        temperature: which of those that are kept.
        replacement: as `ForestDraws.replacement`.
        without: likewise.

    Attributes:
        temperature: as given.
        of: the row of each frontier node, shape `(frontier,)`.
        left: what the law of each draw adds up to, in units of that of its row's first one, shape `(draws,)`.
        totals: what the law of a frontier row's first draw adds up to, in units of `weights`, shape `(frontier,)`; NaN
            where nothing was drawn.
        whole: what it adds up to with what it leaves out.
        out_rows: the frontier rows of `without`, shape `(out,)`.
        out_tokens: their tokens, likewise.
    """

    def __init__(self, source: DrawnFrom, temperature: int, replacement: bool, without: IntArray) -> None:
        self.temperature, self.replacement, self.without = temperature, replacement, without
        self.of = source.rows
        self.laws: ForestLaws | None = source
        self._open: DrawnFrom | None = source
        self.rows, self.tokens, self.prob, self.left = np.arange(0), np.arange(0), np.empty(0), np.empty(0)
        self.totals = np.full(len(source.rows), np.nan)
        self.whole = self.totals.copy()
        kept = distinct(without)
        kept = kept[source.candidates.tokens.ravel()[kept] >= 0] if len(kept) else kept  # padding is no token
        self.out_rows = kept // source.candidates.width
        self.out_tokens = source.candidates.tokens.ravel()[kept] if len(kept) else kept
        self._gone = self.out_rows, self.out_tokens  # what further draws leave out
        shape = len(source.rows), source.laws.layout.blocks
        self._sums, self._peaks = np.empty(shape), np.empty(shape[0])  # of the laws of further draws, by block
        self._totals = np.empty(shape[0])  # what these add up to

    @property
    def _source(self) -> DrawnFrom:
        if self._open is None:
            raise ValueError("the layer of these draws is over")
        return self._open

    def close(self) -> None:
        """Nothing more is drawn."""
        self.laws = self._open = None
        self._sums, self._peaks, self._totals = np.empty((0, 0)), np.empty(0), np.empty(0)

    def draw(self, rows: IntArray) -> NDArray[np.bool_]:
        wanted = np.asarray(rows, dtype=np.int64)
        source, again = self._source, self._again(wanted)
        check_rows(wanted, source.candidates)
        trees = source.candidates.trees[wanted]
        if (self.of[wanted] == NO_ROW).any():
            raise ValueError("a frontier row was drawn from that was not recorded, and has no law")
        self._look_up(distinct(wanted[np.isnan(self.totals[wanted])]))
        came = np.ones(len(wanted), dtype=bool)
        tokens, prob, left = np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted)), np.ones(len(wanted))
        for turn in range(int(again.max(initial=-1)) + 1):
            (now,) = (again == turn).nonzero()
            came[now] = self._totals[wanted[now]] > 0
            if not came.all() and again.any():  # draws that cannot be made take no number, and those behind take theirs
                raise NotKept
            turns, now = source.used[trees] + turns_of(trees, came), now[came[now]]
            numbers = source.numbers.at(trees[now], turns[now])
            left[now] = self._totals[wanted[now]] / self.totals[wanted[now]]
            for first in range(0, len(now), AT_ONCE):
                part = slice(first, first + AT_ONCE)
                tokens[now[part]], prob[now[part]] = self._picked(wanted[now[part]], numbers[part])
        np.add.at(source.used, trees[came], 1)
        self.rows, self.tokens = np.append(self.rows, wanted[came]), np.append(self.tokens, tokens[came])
        self.prob = np.append(self.prob, prob[came] / self.totals[wanted[came]])
        self.left = np.append(self.left, left[came])
        return came

    def _again(self, wanted: IntArray) -> IntArray:
        """Of each draw that is wanted, how many before it have to be made first."""
        if self.replacement:
            return np.zeros(len(wanted), dtype=np.int64)
        return turns_of(wanted)

    def _look_up(self, new: IntArray) -> None:
        """The sums of some frontier rows, without what their laws leave out."""
        if not len(new):
            return
        laws, rows = self._source.laws, self.of
        kept = laws.sums(rows[new], laws.layout.drafter(self.temperature))
        self._sums[new], self._peaks[new] = kept[:, :-1], kept[:, -1]
        self.whole[new] = self._sums[new].sum(axis=1)
        out = np.zeros(len(rows), dtype=bool)
        out[new] = True
        out = out[self.out_rows]
        if out.any():
            out_rows, out_tokens = self.out_rows[out], self.out_tokens[out]
            blocks = laws.layout.blocks
            keys, which = np.unique(out_rows * blocks + out_tokens // BLOCK, return_inverse=True)
            row, block = keys // blocks, keys % blocks
            parts = laws.weights(self.temperature, rows[row], block, self._peaks[row])
            parts[which, out_tokens % BLOCK] = 0.0
            self._sums[row, block] = parts.sum(axis=1)
        self.totals[new] = self._totals[new] = self._sums[new].sum(axis=1)

    def _picked(self, rows: IntArray, numbers: FloatArray) -> tuple[IntArray, FloatArray]:
        """A draw of each of some frontier rows, and what its law has of it, in units of `weights`.

        Args:
            rows: they, shape `(draws,)`.
            numbers: of the draws, shape `(draws,)`.
        """
        laws, found = self._source.laws, list[FloatArray]()

        def part(blocks: IntArray) -> FloatArray:
            own = laws.weights(self.temperature, self.of[rows], blocks, self._peaks[rows])
            draws, tokens = self._out(rows)
            hit = blocks[draws] == tokens // BLOCK
            own[draws[hit], tokens[hit] % BLOCK] = 0.0
            found.append(own)
            return own

        tokens, prob = _picked(self._sums[rows].cumsum(axis=1), part, numbers)
        if not self.replacement:  # what is drawn next goes on without them
            (own,), place = found, (np.arange(len(rows)), tokens % BLOCK)
            own[place] = 0.0
            self._sums[rows, tokens // BLOCK] = own.sum(axis=1)
            self._totals[rows] = self._sums[rows].sum(axis=1)
            self._gone = np.append(self._gone[0], rows), np.append(self._gone[1], tokens)
        return tokens, prob

    def _out(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """What the laws of some frontier rows leave out: by which of these rows, and the tokens."""
        gone, tokens = self._gone
        if not len(gone):
            return gone, tokens
        held, order = np.bincount(gone, minlength=len(self.of)), gone.argsort(kind="stable")
        places = places_of((held.cumsum() - held)[rows], held[rows])
        return np.repeat(np.arange(len(rows)), held[rows]), tokens[order[places]]
