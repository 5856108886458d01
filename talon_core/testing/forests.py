"""What a policy that grows forests makes of a drafter's offers, to be held against trees that it grows one by one."""

from collections.abc import Sequence

import numpy as np

from talon_core.drafter import Frontier
from talon_core.engine.drafting import Drafted, DraftLimits
from talon_core.engine.growing_forest import GrowingForest
from talon_core.engine.offers import Offers
from talon_core.forest import ForestCandidates, ForestGrower
from talon_core.tree import FloatArray, IntArray


def draft_forest(
    policy: ForestGrower, offers: Offers, roots: Sequence[int], limits: Sequence[DraftLimits]
) -> list[Drafted]:
    """Draft a tree from each of some roots, all of them together.

    Args:
        policy: serves all of them.
        offers: of a drafter; the slot of a tree is its place among the roots.
        roots: last committed tokens.
        limits: what bounds each tree; of one vocabulary, and with the same ends.

    Raises:
        PluginError: if the policy or the drafter breaks its contract; the message names it.
    """
    deepest = np.array([one.max_depth for one in limits])
    growing = GrowingForest(policy, np.array(roots), deepest, limits[0].vocab_size, limits[0].ends)
    while len(growing.frontier):
        widths = growing.widths()
        if len(widths):
            pool, tokens = _offered(growing, offers, widths)
            path_logp = pool.path_logp.copy()

            def taking(
                rows: IntArray, ranks: IntArray, own: IntArray = tokens, scores: FloatArray = path_logp
            ) -> tuple[IntArray, FloatArray]:
                return own[rows, ranks], scores[rows, ranks]

            growing.grow(pool, taking)
        for fault in growing.faults.values():
            raise fault
    kept = growing.finish()
    for fault in growing.faults.values():
        raise fault
    forest = growing.forest
    return [Drafted(forest.tree(number, kept), forest.tree(number)) for number in range(forest.size)]


def _offered(growing: GrowingForest, offers: Offers, widths: IntArray) -> tuple[ForestCandidates, IntArray]:
    """What a drafter offers to the frontier, and the tokens."""
    forest, nodes, size = growing.forest, growing.frontier, len(growing.frontier)
    trees = growing.trees_of(nodes)
    tokens, logp = np.full((size, widths.max()), -1), np.full((size, widths.max()), -np.inf)
    for number in np.unique(trees).tolist():
        (rows,) = (trees == number).nonzero()
        places = np.searchsorted(np.flatnonzero(forest.trees == number), nodes[rows])
        asked = Frontier(number, forest.tree(number), places, int(widths[rows[0]]))
        (given,), _ = offers.ask([asked], [{}])
        found = offers.checked(given, asked, growing.vocab_size)
        tokens[rows, : found.width], logp[rows, : found.width] = found.tokens, found.logp
    path_logp = forest.path_logp[nodes][:, None] + logp
    return ForestCandidates(nodes.copy(), trees, logp, path_logp, forest.size, tokens.copy), tokens
