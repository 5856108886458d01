"""Sharing a verification pass among sequences: of several trees, the nodes that are worth their time."""

from collections.abc import Collection, Mapping

import numpy as np

from talon_core.costs import Costs
from talon_core.tree import FloatArray, TokenTree

SIZES = 32
"""Sizes of a pass that are compared, at most."""


def allocated(
    trees: Mapping[int, TokenTree], free: Collection[int], costs: Costs, context: int, besides: float
) -> dict[int, TokenTree]:
    """The trees with as many of their best nodes as make the most tokens a second, all sequences taken together.

    A pass emits one token for each sequence and, by the drafter's probabilities, as many more as those of the drafted
    nodes' paths add up to (OPT-Tree, arXiv 2406.17276, section 3.1). So the likeliest nodes of all trees come first, up
    to where these tokens, divided by the seconds of the round, are most. A policy has chosen its tree for a sequence
    that is alone; sequences that share a pass compete for the same arithmetic.

    Trees with drawn children stay as they are: which of them are kept must not depend on what was drawn.

    Args:
        trees: by slot.
        free: the slots of which a smaller tree may be verified, as their text is the same whatever the tree.
        costs: what passes take; as long as nothing is known, every node is kept.
        context: committed tokens of the longest text.
        besides: seconds that the round takes besides verifying.

    Returns:
        A tree for each slot.
    """
    cuttable = [slot for slot in free if not trees[slot].drawn]
    orders = {slot: trees[slot].best(len(trees[slot])) for slot in cuttable}  # parents before children
    scores = {slot: np.minimum.accumulate(trees[slot].path_logp[order]) for slot, order in orders.items()}
    falling = np.sort(np.concatenate([np.empty(0), *(score[1:] for score in scores.values())]))[::-1]
    whole = [tree for slot, tree in trees.items() if slot not in orders]
    tokens = len(trees) + sum(float(np.exp(tree.path_logp[1:]).sum()) for tree in whole)
    nodes = len(orders) + sum(map(len, whole))
    best, least = -1.0, -np.inf
    expected: FloatArray = tokens + np.concatenate([[0.0], np.cumsum(np.exp(falling))])
    for count in np.unique(np.linspace(0, len(falling), SIZES).astype(int)).tolist():
        seconds = costs.verify(nodes + count, context, len(trees))
        if seconds is None or seconds + besides <= 0:
            return dict(trees)
        rate = float(expected[count]) / (seconds + besides)
        if rate >= best:
            best, least = rate, float(falling[count - 1]) if count else np.inf
    cut = dict(trees)
    for slot, order in orders.items():
        kept = max(1, int((scores[slot] >= least).sum()))
        if kept < len(order):
            cut[slot] = trees[slot].keep(order[:kept])
    return cut
