"""How much of the best trees methods get on a trace, for paper_study.py."""

from collections.abc import Sequence

import attrs

from talon_core.plugins.registry import load_registry
from talon_core.trace.along import Along
from talon_core.trace.folder import Trace
from talon_core.trace.methods import parse_method
from talon_core.trace.oracle import BestTrees, best_trees
from talon_core.trace.replay import Replay
from talon_core.trace.sweep import Line, summaries
from talon_core.trace.trying import Trying

BEST = (16, 60)
"""Nodes of the best trees whose MAT is told."""


@attrs.frozen
class Share:
    """How much of the best trees a method gets.

    Of the drafted tokens that somebody would have accepted who knows the text, with trees of as many nodes as the
    method's largest has, it is how many the method has accepted; None where there are none. The best trees are those
    of `talon trace replay`.

    Attributes:
        method: as it was written.
        mat: its tokens per target pass.
        nodes: of a tree in the mean, the root included.
        largest: nodes of the largest tree.
        outside: questions that the trace does not answer.
        share: on all texts.
        sets: on those of each set.
    """

    method: str
    mat: float
    nodes: float
    largest: int
    outside: int
    share: float | None
    sets: dict[str, float | None]


def shares(trace: Trace, lines: Sequence[Line], methods: Sequence[str]) -> list[Share]:
    """How much of the best trees methods get, the highest share first.

    Args:
        trace: on which they were tried.
        lines: of it, and of these methods at least.
        methods: they.
    """
    by_name = {(one.method, one.set): one for one in summaries(lines)}
    along, found = offers(trace), []
    for method in methods:
        totals = by_name[method, None].totals
        largest = totals.largest_tree
        own = {
            name: attrs.evolve(by_name[method, name], in_hindsight=best_trees(each, largest).in_hindsight).share
            for name, each in along.items()
        }
        nodes = totals.nodes_verified / totals.target_passes
        sets = {name: share for name, share in own.items() if name is not None}
        mat = totals.mean_accepted_tokens
        found.append(Share(method, mat, nodes, largest, totals.outside, own[None], sets))
    return sorted(found, key=lambda row: -(row.share or 0.0))


def best_of(trace: Trace) -> list[BestTrees]:
    """The best trees of some sizes, on all texts."""
    along = offers(trace)[None]
    return [best_trees(along, nodes) for nodes in BEST]


def offers(trace: Trace) -> dict[str | None, list[Along]]:
    """How the drafter's offers lie along the texts of each set, and along all of them."""
    drafter = parse_method("none", trace, load_registry()).drafter
    texts = trace.texts()
    trying = Trying(Replay(trace), [trace.text(*text) for text in texts], ())
    found: dict[str | None, list[Along]] = {None: []}
    for place, (name, _) in enumerate(texts):
        own = trying.along(drafter, place, trace["settings"]["depth"])
        for group in (None, name):
            found.setdefault(group, []).append(own)
    return found
