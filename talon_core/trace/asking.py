"""What a drafter of texts would offer along a text, asked when it is wanted."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import SeededChoices
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier, Proposed
from talon_core.drawn import Drawn
from talon_core.engine.checked_drafter import checked_depth, opened
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.engine.offers import Offers
from talon_core.policy import TreePolicy
from talon_core.trace.along import Along
from talon_core.trace.columns import Rows, TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.observed import Notes
from talon_core.trace.oracle import along_rows
from talon_core.trace.superset import Ahead, OnText, Superset


def superset_of(trace: Trace, depth: int) -> Superset:
    """The tree that a trace is recorded with, of so many layers if its own are fewer."""
    settings = trace["settings"]
    return Superset(settings["width"], max(depth, settings["depth"]), settings["nodes"], settings["least"])


def rows_of(spec: DrafterSpec, text: TextTrace, trace: Trace, superset: Superset) -> Rows:
    """The rows that a recording would have.

    Args:
        spec: of a drafter that reads texts alone.
        text: along which.
        trace: that it is of.
        superset: the tree at each position.
    """
    along = _Asking(spec, text, trace, superset)
    for _ in along:
        along.note()
    return along.notes.rows()


def whole_rows_of(spec: DrafterSpec, text: TextTrace, trace: Trace, superset: Superset) -> Rows | None:
    """The same; None where it knows more candidates of a node than are asked for, at once when that shows."""
    along = _Asking(spec, text, trace, superset)
    for _ in along:
        along.note()
        if not along.notes.latest_are_whole:
            return None
    return along.notes.rows()


def along_of(spec: DrafterSpec, text: TextTrace, trace: Trace, superset: Superset) -> Along:
    """How the offers of a drafter lie along a text: what `along_rows` says of `rows_of`.

    The drafter is asked twice at each position: along the text first, and then at those nodes alone that are as likely
    as the last token of the text that it offers there. What it offers below others comes behind all of these.

    Args:
        spec: as for `rows_of`, and so is all else.
    """
    along = _Asking(spec, text, trace, superset)
    on_text = OnText(superset.candidates, superset.depth, along.ahead)
    for _ in along:
        along.ahead.floor = math.inf
        along.ask(on_text)
        if along.ahead.floor < math.inf:
            along.note()
    return along_rows(along.notes.rows(), text.ids[text.prompt_tokens :].tolist())


class _Asking:
    """A drafter that is asked along a text, position by position.

    Args:
        spec: the drafter's options.
        text: it.
        trace: that it is of.
        superset: the tree at each position.

    Attributes:
        ahead: what comes in the text, as the superset is told.
        notes: of what was said.
    """

    def __init__(self, spec: DrafterSpec, text: TextTrace, trace: Trace, superset: Superset) -> None:
        target = trace["target"]
        self.notes = Notes(superset.candidates, superset.depth)
        self.ahead = Ahead()
        self._text, self._superset = text, attrs.evolve(superset, ahead=self.ahead)
        self._limit = trace.limit(text)
        self._vocab_size, self._eos = int(target["vocab_size"]), frozenset(target["eos"])
        self._drafter = opened(spec, trace.target)
        self._most = checked_depth(spec, self._drafter)
        self._root, self._left = 0, 0

    def __iter__(self) -> Iterator[None]:
        text, drafter = self._text, self._drafter
        new = text.ids[text.prompt_tokens :]
        drafter.open(0, text.ids[: text.prompt_tokens].copy(), len(text.ids))
        for position in range(len(new)):
            self._root, self._left = int(text.ids[text.prompt_tokens + position - 1]), self._limit - position - 1
            self.ahead.tokens = new[position:]
            self.notes.begin()
            yield
            self.notes.end()
            drafter.commit({0: Committed(new[position : position + 1].copy(), np.zeros(1, dtype=np.int64))})

    def ask(self, policy: TreePolicy, offers: Callable[[Drafter], Offers] = Offers) -> None:
        """Draft a tree at the current position."""
        left = self._left if self._most is None else min(self._left, self._most)
        limits = DraftLimits(self._vocab_size, left, self._eos)
        draft_tree(policy, self._drafter, self._root, limits, SeededChoices(0), None, offers)

    def note(self) -> None:
        """Draft the superset there, and note what is offered."""
        self.ask(self._superset, partial(_Noting, notes=self.notes))


class _Noting(Offers):
    """A drafter whose answers are noted when they are checked, with the draft passes that they took."""

    def __init__(self, drafter: Drafter, notes: Notes) -> None:
        super().__init__(drafter)
        self._notes, self._passes = notes, 0

    def ask(self, frontiers: Sequence[Frontier], draws: Sequence[Mapping[int, Drawn]]) -> Proposed:
        found = super().ask(frontiers, draws)
        self._passes = found.draft_passes
        return found

    def checked(self, given: Candidates, asked: Frontier, vocab_size: int) -> Candidates:
        found = super().checked(given, asked, vocab_size)
        self._notes.note(asked, found, self._passes)
        return found
