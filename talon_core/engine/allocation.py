"""Sharing a verification pass among sequences: of several trees, the nodes that are worth their time."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from talon_core.costs import Costs
from talon_core.errors import blaming, is_number
from talon_core.tree import FloatArray, IntArray, TokenTree

SIZES = 32
"""Sizes of a pass that are compared, at most: the smallest, the largest, and between them by equal factors."""


def allocated(
    trees: Mapping[int, TokenTree], free: Collection[int], costs: Costs, context: int, besides: float
) -> dict[int, TokenTree]:
    """The trees with as many of their best nodes as make the most tokens a second, all sequences taken together.

    A pass emits one token for each sequence and, by the drafter's probabilities, as many more as those of the drafted
    nodes' paths add up to (OPT-Tree, arXiv 2406.17276, section 3.1). So the likeliest nodes of all trees come first, up
    to that of the compared sizes at which these tokens, divided by the seconds of the round, are most. A policy has
    chosen its tree for a sequence that is alone; sequences that share a pass compete for the same arithmetic.

    Trees with drawn children stay as they are: which of them are kept must not depend on what was drawn.

    Args:
        trees: by slot.
        free: the slots of which a smaller tree may be verified, as their text is the same whatever the tree.
        costs: what passes take; as long as nothing is known, every node is kept.
        context: committed tokens of the longest text.
        besides: seconds that the round takes besides verifying.

    Returns:
        A tree for each slot.

    Raises:
        PluginError: if the costs raise; the message names them.
    """
    orders = {slot: trees[slot].best(len(trees[slot]))[1:] for slot in free if not trees[slot].drawn}  # but the root
    scores = [_falling(trees[slot].path_logp[order]) for slot, order in orders.items()]
    every: FloatArray = np.concatenate([np.empty(0), *scores])
    likeliest: IntArray = np.argsort(-every, kind="stable")
    whole = [tree for slot, tree in trees.items() if slot not in orders]
    tokens = len(trees) + sum(float(np.exp(np.minimum(tree.path_logp[1:], 0.0)).sum()) for tree in whole)
    expected = tokens + np.concatenate([[0.0], np.cumsum(np.exp(every[likeliest]))])
    best, kept = -1.0, 0
    for count in _sizes(len(every)):
        seconds = _seconds(costs, len(orders) + sum(map(len, whole)) + count, context, len(trees))
        if seconds is None or seconds + besides <= 0:
            return dict(trees)
        rate = float(expected[count]) / (seconds + besides)
        if rate >= best:
            best, kept = rate, count
    owners = np.repeat(np.arange(len(orders)), [len(order) for order in orders.values()])
    shares = np.bincount(owners[likeliest[:kept]], minlength=len(orders)).tolist()
    cut = dict(trees)
    for (slot, order), share in zip(orders.items(), shares, strict=True):
        if share < len(order):
            cut[slot] = trees[slot].keep(np.append(0, order[:share]))
    return cut


def _falling(path_logp: FloatArray) -> FloatArray:
    """Path log-probabilities that come best first, where rounding has let none be above the one before, or 0."""
    return np.minimum.accumulate(np.minimum(path_logp, 0.0))


def _sizes(most: int) -> list[int]:
    """The numbers of drafted nodes that are compared, rising: 0 to `most`, all where they are few."""
    if most < SIZES:
        return [*range(most + 1)]
    found: list[int] = np.unique(np.geomspace(1, most, SIZES - 1).round().astype(int)).tolist()
    return [0, *found]


def _seconds(costs: Costs, nodes: int, context: int, batch: int) -> float | None:
    """What a pass takes; None where the costs do not know."""
    with blaming("costs", costs, "verify"):
        answer: Any = costs.verify(nodes, context, batch)
    return float(answer) if is_number(answer) and math.isfinite(answer) and answer >= 0 else None
