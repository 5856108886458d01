"""What a drafter of texts would offer along a text, asked when it is wanted."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import SeededChoices
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier
from talon_core.engine.checked_drafter import checked_depth, opened
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.engine.offers import Offers
from talon_core.engine.text_target import TextTarget
from talon_core.trace.along import Along
from talon_core.trace.columns import Rows, TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.observed import Notebook, Notes, Observed
from talon_core.trace.oracle import along_rows
from talon_core.trace.superset import Ahead, OnText, Superset


def rows_of(spec: DrafterSpec, text: TextTrace, trace: Trace, depth: int) -> Rows:
    """The rows that a recording would have.

    Args:
        spec: of a drafter that reads texts alone.
        text: along which.
        trace: that it is of.
        depth: layers, if the trace's own are fewer.
    """
    notes, policy = _superset(trace, depth)
    asked = opened(spec, TextTarget(trace["target"]["vocab_size"]))
    drafter = Observed(asked, Notebook(notes), spec, trace["target"]["vocab_size"])
    for root, limits in _positions(spec, drafter, text, trace, policy.ahead):
        notes.begin()
        draft_tree(policy, drafter, root, limits, SeededChoices(0))
        notes.end()
    return notes.rows()


def along_of(spec: DrafterSpec, text: TextTrace, trace: Trace, depth: int) -> Along:
    """How the offers of a drafter lie along a text: what `along_rows` says of `rows_of`.

    The drafter is asked twice at each position: along the text first, and then at those nodes alone that are as likely
    as the last token of the text that it offers there. What it offers below others comes behind all of these.

    Args:
        spec: as for `rows_of`, and so is all else.
    """
    notes, policy = _superset(trace, depth)
    on_text, choices = OnText(policy.candidates, policy.depth, policy.ahead), SeededChoices(0)
    drafter = opened(spec, TextTarget(trace["target"]["vocab_size"]))
    noting = partial(_Noting, notes=notes)
    for root, limits in _positions(spec, drafter, text, trace, policy.ahead):
        policy.ahead.floor = math.inf
        draft_tree(on_text, drafter, root, limits, choices)
        notes.begin()
        if policy.ahead.floor < math.inf:
            draft_tree(policy, drafter, root, limits, choices, None, noting)
        notes.end()
    return along_rows(notes.rows(), text.ids[text.prompt_tokens :].tolist())


def _superset(trace: Trace, depth: int) -> tuple[Notes, Superset]:
    settings = trace["settings"]
    depth = max(depth, settings["depth"])
    notes = Notes(settings["width"], depth, laws=False)
    return notes, Superset(settings["width"], depth, settings["nodes"], settings["least"], ahead=Ahead())


def _positions(
    spec: DrafterSpec, drafter: Drafter, text: TextTrace, trace: Trace, ahead: Ahead
) -> Iterator[tuple[int, DraftLimits]]:
    """Go through a text; at each position the token before it and what bounds the trees there."""
    target, new = trace["target"], text.ids[text.prompt_tokens :]
    drafter.open(0, text.ids[: text.prompt_tokens].copy(), len(text.ids))
    for position in range(len(new)):
        ahead.tokens = new[position:]
        left, most = len(new) - position - 1, checked_depth(spec, drafter)
        limits = DraftLimits(target["vocab_size"], left if most is None else min(left, most), frozenset(target["eos"]))
        yield int(text.ids[text.prompt_tokens + position - 1]), limits
        drafter.commit({0: Committed(new[position : position + 1].copy(), np.zeros(1, dtype=np.int64))})


class _Noting(Offers):
    """A drafter whose answers are noted when they are checked; nobody asks for the draft passes."""

    def __init__(self, drafter: Drafter, notes: Notes) -> None:
        super().__init__(drafter)
        self._notes = notes

    def checked(self, given: Candidates, asked: Frontier, vocab_size: int) -> Candidates:
        found = super().checked(given, asked, vocab_size)
        self._notes.note(asked, found, 0)
        return found
