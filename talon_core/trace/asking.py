"""What a drafter of texts would offer along a text, asked when it is wanted."""

import numpy as np

from talon_core.choices import SeededChoices
from talon_core.drafter import Committed, DrafterSpec
from talon_core.engine.checked_drafter import checked_depth, opened
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.trace.columns import Rows, TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.observed import Notes, Observed, Place
from talon_core.trace.superset import Ahead, Superset
from talon_core.trace.texts import TextTarget


def rows_of(spec: DrafterSpec, text: TextTrace, trace: Trace, depth: int) -> Rows:
    """The rows that a recording would have.

    Args:
        spec: of a drafter that reads texts alone.
        text: along which.
        trace: that it is of.
        depth: layers, if the trace's own are fewer.
    """
    settings, target = trace["settings"], trace["target"]
    new, ahead, depth = text.ids[text.prompt_tokens :], Ahead(), max(depth, settings["depth"])
    notes = Notes(settings["width"], depth, laws=False)
    policy = Superset(settings["width"], depth, settings["nodes"], settings["least"], ahead=ahead)
    asked = opened(spec, TextTarget(target["vocab_size"]))
    drafter = Observed(asked, Place(notes), spec, target["vocab_size"])
    drafter.open(0, text.ids[: text.prompt_tokens].copy(), len(text.ids))
    for position in range(len(new)):
        ahead.tokens = new[position:]
        left, most = len(new) - position - 1, checked_depth(spec, drafter)
        limits = DraftLimits(target["vocab_size"], left if most is None else min(left, most), frozenset(target["eos"]))
        notes.begin()
        draft_tree(policy, drafter, int(text.ids[text.prompt_tokens + position - 1]), limits, SeededChoices(0))
        notes.end()
        drafter.commit({0: Committed(new[position : position + 1].copy(), np.zeros(1, dtype=np.int64))})
    return notes.rows()
