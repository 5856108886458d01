"""TALON with a drawn child in each group of siblings."""

import math

import attrs
import numpy as np
from attrs.validators import ge, gt, le, lt

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drawn import Drawn, sharpened, without
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestLaws
from talon_core.forest_grower import ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import begins_of, highest_of_each
from talon_strategies.drawing import AGREEMENT, FollowsTheRequest, known_nodes, known_rows

LEAST_REST = 1e-6
"""What is left for a drawn child, at the least, where rounding leaves nothing."""


@attrs.frozen
class TalonSampled(FollowsTheRequest, ForestDrawer):
    """TALON's gate over fixed children and one drawn child in each group of siblings.

    After every node that is drafted from, one child may be drawn from the drafter's law, and the best tokens may join
    it as fixed children, which the draw then leaves out. The rule `hybrid` tests the drawn child against the whole
    law, so where the drafter is not sure, at higher temperatures, more is accepted than of the best tokens alone
    (arXiv 2502.18779). A group's first place is the draw's.

    Each place is worth what it adds to the probability that the walk gets through the group: with the agreement
    a = 0.1 + 0.8 q(best), a for the draw and (1 - a) q(c) for each fixed child c beside it, times the reach of their
    parent. As in TALON (arXiv 2601.07353, section 5.2), the first layer is the `top_k` best places, and a later layer
    those worth at least `mu` times its best, cut to what fits. For what is drafted below, a fixed child's reach is
    its path probability, and the drawn child's a times what the fixed ones leave. Nothing of this depends on which
    token is drawn, which keeps the draw's law; the idea of such a proxy is RheoSampling's (arXiv 2609.21827).

    At temperature 0 there is nothing to gain from drawing: use `talon`.

    Attributes:
        budget: nodes of the tree, the root included, at least 2.
        top_k: places in the first layer, at least 1.
        mu: the gate, in (0, 1]; the larger, the deeper and narrower the tree.
        least: the smallest worth of a place, in [0, 1); the tree ends where nothing reaches it, budget or not.
        temperature: children are drawn from the drafter's law at so many times the request's temperature, more than 0;
            best a little below it.
        follows: False draws at `temperature` itself, whatever the request's is.
    """

    name = "talon-sampled"
    children = "hybrid"
    default_rule = "hybrid"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    top_k: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 16, log=True))
    mu: float = attrs.field(default=0.1, validator=[number, gt(0), le(1)], metadata=searched(0.01, 0.6, log=True))
    least: float = attrs.field(default=0.0, validator=[number, ge(0), lt(1)], metadata=searched(0.0, 0.4))
    temperature: float = attrs.field(default=0.8, validator=[number, gt(0)], metadata=searched(0.4, 1.2))
    follows: bool = attrs.field(default=True, validator=yes_or_no)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        rows = np.array(known_rows(candidates))
        prob = np.exp(candidates.logp[rows])  # (rows, width)
        agreement = AGREEMENT[0] + AGREEMENT[1] * prob[:, :1]  # (rows, 1)
        reach = np.exp(tree.path_logp[candidates.frontier[rows]])[:, None]
        worth = reach * np.concatenate([agreement, (1.0 - agreement) * prob], axis=1)  # (rows, 1 + width)
        chosen, drawn = [np.empty(0, dtype=np.int64)], {}
        for index, fixed in self._groups(worth, self.budget - len(tree), first=len(tree) == 1):
            row = int(rows[index])
            chosen.append(row * candidates.width + fixed)
            rest = max(1.0 - float(prob[index, fixed].sum()), LEAST_REST)
            draw = self._drawn(choices, candidates, row, fixed, float(agreement[index, 0]) * rest)
            if draw is not None:
                drawn[row] = draw
        return Growth(np.concatenate(chosen), drawn=drawn)

    def _groups(self, worth: FloatArray, room: int, first: bool) -> list[tuple[int, IntArray]]:
        """The rows that get a drawn child, each with the ranks of the fixed ones beside it.

        The draw is worth more than any fixed child beside it, so whatever of a row passes, its draw does.
        """
        flat = worth.ravel()
        gate = self.least if first else max(self.least, self.mu * float(flat.max()))
        best = np.argsort(-flat, kind="stable")[: min(self.top_k, room) if first else room]
        best = best[(flat[best] >= gate) & (flat[best] > 0)]
        index, place = best // worth.shape[1], best % worth.shape[1]
        return [(int(one), place[(index == one) & (place > 0)] - 1) for one in index[place == 0]]

    def _drawn(self, choices: Choices, candidates: Candidates, row: int, fixed: IntArray, reach: float) -> Drawn | None:
        """One child from the law without the fixed ones; None where they are all that can come out."""
        law = without(sharpened(candidates.law(row), self.temperature), candidates.tokens[row, fixed])
        return candidates.draw(choices, row, law=law, logp=np.array([math.log(reach)])) if law.any() else None

    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        rows = known_nodes(candidates)
        holding, places = forest.holding(candidates.frontier[rows])
        prob = np.exp(candidates.logp[rows])  # (rows, width)
        agreement = AGREEMENT[0] + AGREEMENT[1] * prob[:, :1]  # (rows, 1)
        reach = np.exp(holding.path_logp[places])[:, None]
        worth = reach * np.concatenate([agreement, (1.0 - agreement) * prob], axis=1)  # (rows, 1 + width)
        best = self._best_places(forest, candidates.trees[rows], worth)
        index, place = best // worth.shape[1], best % worth.shape[1]
        draws, fixed = index[place == 0], index[place > 0]
        turn = np.empty(len(rows), dtype=np.int64)
        turn[draws] = np.arange(len(draws))  # the fixed ones stand group by group
        order = turn[fixed].argsort(kind="stable")
        fixed, rank = fixed[order], place[place > 0][order] - 1
        taken = np.bincount(fixed, weights=prob[fixed, rank], minlength=len(rows))[draws]
        chosen = rows[fixed] * candidates.width + rank
        drawn = laws.drawing(self.temperature, without=chosen)
        came = drawn.draw(rows[draws])
        logp = np.log(agreement[draws, 0] * np.maximum(1.0 - taken, LEAST_REST))
        return ForestGrowth(chosen, drawn=drawn, logp=logp[came])

    def _best_places(self, forest: Forest, trees: IntArray, worth: FloatArray) -> IntArray:
        """The places that pass in each tree, tree by tree, the best first, as indices into the flattened `worth`."""
        room = self.budget - forest.sizes
        if forest.layer == 0:
            gate, most = np.full(len(worth), self.least), np.minimum(self.top_k, room)
        else:
            firsts = begins_of(trees)
            best = np.maximum.reduceat(worth.ravel(), firsts * worth.shape[1])
            counts = np.diff(np.append(firsts, len(trees)))
            gate, most = np.repeat(np.maximum(self.least, self.mu * best), counts), room
        good = (worth >= gate[:, None]) & (worth > 0)
        held = np.bincount(trees, weights=good.sum(axis=1), minlength=forest.size).astype(np.int64)
        found = good.ravel().nonzero()[0]
        return found[highest_of_each(worth.ravel()[found], held, most)]
