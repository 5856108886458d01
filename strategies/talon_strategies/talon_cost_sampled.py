"""TALON's tree with a price for each node and layer, and a drawn child wherever one is worth more."""

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.choices import Choices
from talon_core.drawn import Drawn, sharpened, without
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.rounds import Round
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.chain_plan import ChainPrices, planned_draws
from talon_strategies.drawing import NOTHING, FollowsTheRequest, drawn_at, known_rows
from talon_strategies.draws_learnt import Drawing, expected_of_draws
from talon_strategies.talon_cost import TalonCost

NONE = np.empty(0)

DRAWN_AT = 0.8
"""Children are drawn at so many times the request's temperature, as `talon-sampled` does."""


@attrs.frozen
class TalonCostSampled(TalonCost):
    """`talon-cost` for requests that sample: every group of siblings is fixed, drawn or both, whichever pays.

    Under the rule `hybrid` (arXiv 2502.18779) a fixed child c is accepted with the target's probability p(c), whether a
    draw is tested before it or not: what the draw leaves of p at c is all of it. A child that is drawn from q~, the
    drafter's law without the fixed ones at `DRAWN_AT` times the request's temperature, adds the sum of min(p, q~). So
    a group of k nodes is worth the larger of the p of its k best, and of the p of its k - 1 best with a draw beside
    them. Both are estimated: p as by `talon-cost`; a draw, where the best r of q are fixed, at 0.1 (1 - their sum) +
    0.8 q(next), calibrated likewise.
    A group of one draw under each node is the chain of classic speculative sampling.

    What was drawn must be verified whatever came out, so a node that has joined stays: there is no second choice among
    all nodes when the tree is finished. A layer's groups grow by what a further node adds, the most first, as long as
    that is worth its price at the tokens a second that were expected of the latest rounds, or at plain decoding's if
    those are more; while there are none, up to where the expected tokens a second of this round are most. And no node
    joins that adds less than 1 / `budget`, so that where nodes are free there is room for deeper ones. From which nodes
    another layer is drafted, when drafting pauses, and what is assumed while no prices are known, is `talon-cost`'s,
    which also serves every greedy request.

    Where passes may be run ahead of their rounds (`SequenceInfo.draws_on`), trees are chains where those of
    `talon-cost` are: of fixed tokens, or of drawn ones where a draw would have brought more behind the latest nodes.
    The latter are as long as brings most if all draws are accepted as often. All this is ours.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2.
        depth: most layers, at least 1; one draft pass each.
    """

    name = "talon-cost-sampled"
    purpose = FollowsTheRequest.purpose
    children = "hybrid"
    default_rule = "hybrid"
    drawing: Drawing = attrs.field(init=False, eq=False, repr=False, factory=Drawing)

    def width(self, tree: TokenTree) -> int:
        return super().width(tree) if len(tree) < self.budget else 0

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        if sequence.greedy:
            return WithoutDraws(self.budget, self.depth).begin(sequence)
        one = super().begin(sequence)
        assert isinstance(one, TalonCostSampled)
        one.drawing.temperature = drawn_at(DRAWN_AT, sequence)
        one.drawing.chained = drawn_at(1.0, sequence)  # where nothing is fixed beside a draw, it does best there
        one.learnt.drawing = one.drawing if sequence.draws_on else None
        return one

    @property
    def plans_chains(self) -> bool:
        return type(self).scored is TalonCost.scored and type(self).learn is TalonCostSampled.learn

    def planned_chains(self, prices: ChainPrices, most: int) -> Chains:
        drawing = self.learnt.drawing
        if drawing is not None:
            of_best, of_draws = drawing.gains(prices.node(1))
            if of_draws >= of_best:
                return planned_draws(drawing, prices, most, self.breadth)
        return super().planned_chains(prices, most)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        learnt = self.learnt
        layer = self.priced(tree, candidates)
        if learnt.chains is not None:
            return self._drawn_chain(
                tree, candidates, self.grown_chain(tree, candidates, layer, learnt.chains), choices
            )
        if layer == 0:
            learnt.scores, learnt.own, learnt.layers = np.zeros(1), np.ones(1), []
        rows = np.array(known_rows(candidates))
        reach = learnt.scores[candidates.frontier[rows]][:, None]  # (rows, 1)
        fixed = reach + learnt.calibration.accepted(candidates.logp[rows])  # (rows, width), as are the next three
        expected = expected_of_draws(np.exp(candidates.logp[rows]))
        draws = reach + self.drawing.calibration.accepted(np.log(expected))
        gains, with_draw = groups(np.exp(fixed), np.exp(draws))
        learnt.layers.append((learnt.own[candidates.frontier[rows]], gains / np.exp(reach)))
        most = min(self.budget - len(tree), np.count_nonzero(gains * self.budget >= 1.0))
        order = np.argsort(-gains, axis=None, kind="stable")[:most]
        gain = np.concatenate([[0.0], np.cumsum(gains.ravel()[order])])
        count = self._worth(len(tree) - 1, float(np.exp(learnt.scores).sum()), gain)
        self.known.nodes = len(tree) - 1 + count
        sizes = np.bincount(order[:count] // gains.shape[1], minlength=len(rows))
        chosen, drawn, scores, drawn_scores = [NOTHING], {}, [NONE], []
        parents, drawn_parents = [NONE], []  # how likely they are reached
        for index in np.flatnonzero(sizes).tolist():
            size, row = int(sizes[index]), int(rows[index])
            draws_one = bool(with_draw[index, size - 1])
            beside = size - draws_one
            chosen.append(row * candidates.width + np.arange(beside))
            scores.append(fixed[index, :beside])
            parents.append(np.repeat(reach[index], beside))
            draw = self._drawn(choices, candidates, row, beside, expected[index, beside]) if draws_one else None
            if draw is not None:
                drawn[row] = draw
                drawn_scores.append(draws[index, beside])
                drawn_parents.append(float(reach[index, 0]))
        joined = np.concatenate([*scores, drawn_scores])
        own = np.exp(joined - np.concatenate([*parents, drawn_parents]))
        price = self.price(self.known.nodes)
        frontier = np.arange(0)
        if price is not None:
            frontier = len(tree) + self.expanded(own, np.exp(joined), price, self.breadth)
        learnt.scores, learnt.own = np.append(learnt.scores, joined), np.append(learnt.own, own)
        return Growth(np.concatenate(chosen), frontier=frontier, drawn=drawn)

    def chain_came(self, logp: FloatArray, nodes: int) -> None:
        super().chain_came(logp, nodes)  # said again beside `grow`, by which its chains are grown here

    def _drawn_chain(self, tree: TokenTree, candidates: Candidates, fixed: Growth, choices: Choices) -> Growth:
        """What joins a chain: where its tokens are drawn, a draw in the place of the candidate that would."""
        chains = self.learnt.chains
        if chains is None or chains.drawn is None or not len(fixed.chosen):
            return fixed
        draw = candidates.draw(choices, 0, law=sharpened(candidates.law(0), chains.drawn))
        depth, path = len(tree), float(tree.path_logp[-1] + draw.logp[0])
        goes_on = depth < chains.depth and path >= chains.goes_on[depth - 1]
        return Growth(NOTHING, frontier=np.arange(depth, depth + goes_on), drawn={0: draw})

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree

    def learn(self, round_: Round) -> None:
        tree = round_.tree
        drawn = np.array([tree.child(parent, int(one.tokens[0])) for parent, one in tree.drawn.items()], dtype=np.int64)
        others = np.setdiff1d(np.arange(len(tree)), drawn)
        self.learnt.calibration.learn(round_, but=drawn)
        self.drawing.calibration.learn(round_, but=others)

    def _worth(self, drafted: int, expected: float, gain: FloatArray) -> int:
        """How many further nodes join.

        Args:
            drafted: nodes that have joined before.
            expected: tokens of the round with these.
            gain: tokens that 0, 1, ... further nodes add, shape `(nodes + 1,)`.
        """
        seconds = self.known.drafting[-1] + self.known.verifying[drafted : drafted + len(gain)]
        affordable = max(int(seconds.searchsorted(self.most, side="right")), 1)
        gain, seconds = gain[:affordable], seconds[:affordable]
        self.learnt.rate = self.rate(float(((expected + gain) / seconds).max()))
        return int((gain - self.learnt.rate * seconds).argmax())

    def _drawn(self, choices: Choices, candidates: Candidates, row: int, beside: int, expected: float) -> Drawn | None:
        """One child from the law without the best ones; None where they are all that can come out."""
        law = without(sharpened(candidates.law(row), self.drawing.temperature), candidates.tokens[row, :beside])
        return candidates.draw(choices, row, law=law, logp=np.array([np.log(expected)])) if law.any() else None


@attrs.frozen
class WithoutDraws(TalonCost):
    """`talon-cost` in the place of `talon-cost-sampled`: the kind of its trees is the same, but nothing is drawn."""

    name = TalonCostSampled.name
    children = TalonCostSampled.children
    default_rule = TalonCostSampled.default_rule


def groups(fixed: FloatArray, draws: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """What groups of siblings are worth.

    Args:
        fixed: how likely each of the best candidates is accepted as a fixed child, falling, shape `(rows, width)`; 0
            for padding, which is in no group.
        draws: how likely a draw is, where the 0, 1, ... best are fixed, shape `(rows, width)`.

    Returns:
        What the 1st, 2nd, ... node adds to a group, at most as much as the one before, shape `(rows, width)`; and
        whether a group of 1, 2, ... nodes has a draw, likewise.
    """
    sums = np.cumsum(fixed, axis=1)
    drawing = np.where(fixed > 0, sums - fixed + draws, 0.0)
    with_draw = drawing > sums
    best = np.where(with_draw, drawing, sums)
    gains = np.where(fixed > 0, np.diff(best, prepend=0.0, axis=1), 0.0)
    return np.minimum.accumulate(np.maximum(gains, 0.0), axis=1), with_draw
