"""Whether two replays of a text have had the same rounds."""

import numpy as np

from talon_core import TokenTree
from talon_core.rounds import Round
from talon_core.trace.replay import Replayed


def same_trees(one: TokenTree | None, other: TokenTree | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "parents", "path_logp"))


def same_rounds(one: Round, other: Round) -> bool:
    return (
        same_trees(one.tree, other.tree)
        and same_trees(one.drafted, other.drafted)
        and np.array_equal(one.path, other.path)
        and np.array_equal(one.tokens, other.tokens)
        and (one.draft_passes, one.context, one.spans) == (other.draft_passes, other.context, other.spans)
    )


def same(one: Replayed, other: Replayed) -> bool:
    return (
        (one.outside, one.seconds, len(one.rounds)) == (other.outside, other.seconds, len(other.rounds))
        and all(map(same_rounds, one.rounds, other.rounds))
    )  # fmt: skip
