"""Drawn children tested on a device as rules test them on the host, in the same order, with the same numbers.

Whatever comes out of a test, the same is launched: nothing waits for the device. A sequence that is through goes on as
if it were not, and nothing is made of it.
"""

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from talon_core.rule import DrawnOrder
from talon_core.runtime.draws import draw_from
from talon_core.runtime.tested_trees import DrawnTrees
from talon_core.target import NO_TOKEN

LawsAt = Callable[[Tensor], Tensor]
"""The target's laws after some of the places of `DrawnTrees`, shape `(places, vocab)`, float64; NaN where there is
none."""


@attrs.frozen(eq=False)
class Taken:
    """What follows the nodes of some trees.

    Attributes:
        tokens: the token after each node that the walk comes to, shape `(places,)`, int64; `NO_TOKEN` elsewhere, and
            where there was no law.
        within: whether the walk may go to a node, shape `(places,)`.
        numbers: with how many numbers each tree's tests and draws were made, shape `(trees,)`, int64.
    """

    tokens: Tensor
    within: Tensor
    numbers: Tensor


def tested_in_turn(trees: DrawnTrees, laws_at: LawsAt) -> Taken:
    """Test the children of a node in the order of their draws; draw from what is left if none is accepted.

    As `talon_strategies.rules.descent.reject_in_turn`, for all trees at once, depth by depth.

    Args:
        trees: with numbers for each test and draw of any path.
        laws_at: the target's.
    """
    tokens = torch.full_like(trees.parents, NO_TOKEN)
    nobody = len(tokens) - 1
    node = trees.roots
    goes_on = torch.ones_like(node, dtype=torch.bool)
    used = torch.zeros_like(node)
    for level in trees.levels:
        r, q = laws_at(node), trees.laws[trees.law_of[node]]
        taken = torch.full_like(node, NO_TOKEN)
        for draw in range(level.most):
            tested = goes_on & (taken == NO_TOKEN) & (draw < trees.counts[node])
            token = trees.drawn[node, draw]
            accepted = tested & _shows_heads(_number(trees, used), _ratio(_of(r, token), _of(q, token)))
            used = used + tested
            taken = torch.where(accepted, token, taken)
            rejected = tested & ~accepted
            rest = (r - q).clamp(min=0.0)
            total = rest.sum(-1, keepdim=True)
            r = torch.where(rejected[:, None] & (total > 0), rest / total, r)
            once = rejected & (trees.again[node] == 0)
            q = torch.where(once[:, None], _without(q, token), q)
        draws = goes_on & (taken == NO_TOKEN)
        taken = torch.where(draws, draw_from(r, _number(trees, used)), taken)
        used = used + draws
        tokens[torch.where(goes_on, node, nobody)] = taken
        held = (trees.parents == node[:, None]) & (trees.tokens == taken[:, None])  # (trees, places)
        child = held.int().argmax(-1)
        goes_on = goes_on & held.any(-1) & (trees.last[child] == 0)
        node = torch.where(goes_on, child, node)
    return Taken(tokens, torch.ones_like(tokens, dtype=torch.bool), used)


def tested_leaves_first(trees: DrawnTrees, laws_at: LawsAt) -> Taken:
    """Test a tree from its leaves to its root.

    As `talon_strategies.rules.traversal.Traversal`, and for a chain as `Block`, for all trees at once. A walk ends with
    the first node that is accepted. So what is left of the laws where it ends is what is left where all tests before
    have failed, and that is known without making them.

    Args:
        trees: with numbers for a test of each node and a draw.
        laws_at: the target's.
    """
    states = _Rejected(trees, laws_at)
    nobody = len(trees.parents) - 1
    visited = states.visited[trees.events]
    coins = visited & (trees.leaving == 1)
    before = coins.cumsum(-1) - coins.long()  # (trees, events)
    accepted = coins & _shows_heads(_numbers(trees, before), states.prob[trees.events])
    lost = visited & (trees.leaving == 0) & states.lost[trees.events]
    event = (accepted | lost).int().argmax(-1, keepdim=True)
    node = trees.events.gather(1, event)[:, 0]
    failed = lost.gather(1, event)[:, 0]
    ended = trees.last[node] == 1
    used = (before + coins.long()).gather(1, event)[:, 0]
    draws = ~failed & ~ended
    tokens = torch.full_like(trees.parents, NO_TOKEN)
    within = torch.zeros_like(tokens, dtype=torch.bool)
    tokens[node] = torch.where(draws, draw_from(states.left(node, laws_at), _number(trees, used)), NO_TOKEN)
    for _ in trees.levels:
        within[node] = True
        above = trees.parents[node]
        tokens[torch.where(above >= 0, above, nobody)] = trees.tokens[node]
        node = torch.where(above >= 0, above, node)
    return Taken(tokens, within, used + draws)


class _Rejected:
    """What every node is visited with, and what is left of its law, where all nodes before it were rejected.

    Attributes:
        visited: whether a walk comes to a node, shape `(places,)`.
        prob: P, the probability of accepting it in the end, same shape, float64.
        lost: whether there was no law where one was needed, same shape.
    """

    def __init__(self, trees: DrawnTrees, laws_at: LawsAt) -> None:
        places = len(trees.parents)
        self.visited = torch.zeros(places, dtype=torch.bool, device=trees.parents.device)
        self.lost = self.visited.clone()
        self.prob = trees.laws.new_zeros(places)
        self._laws: list[Tensor] = []
        self._law_of = torch.full_like(trees.parents, -1)
        self.visited[trees.roots] = True
        self.prob[trees.roots] = 1.0
        known = 0
        for level in trees.levels:
            if level.most:
                self._laws.append(self._reject(trees, level.nodes, level.most, laws_at(level.nodes)))
                self._law_of[level.nodes] = torch.arange(known, known + len(level.nodes), device=self.prob.device)
                known += len(level.nodes)

    def _reject(self, trees: DrawnTrees, nodes: Tensor, most: int, p: Tensor) -> Tensor:
        """Visit the children of nodes of one depth, and reject them; what is left of p, shape `(nodes, vocab)`."""
        q, prob = trees.laws[trees.law_of[nodes]], self.prob[nodes]
        nobody = len(trees.parents) - 1
        self.lost[nodes] = p[:, 0].isnan() & (prob > 0)  # then all of it is
        for draw in range(most):
            visits = self.visited[nodes] & (draw < trees.counts[nodes]) & (prob > 0)
            token = trees.drawn[nodes, draw]
            child = torch.where(visits, trees.children[nodes, draw], nobody)
            self.prob[child] = _ratio(prob * _of(p, token), _of(q, token))
            self.visited[child] = True
            g = (prob[:, None] * p - q).clamp(min=0.0)
            s = g.sum(-1)
            p = torch.where((visits & (s > 0))[:, None], g / s[:, None], p)
            q = torch.where(visits[:, None], _without(q, token), q)
            prob = torch.where(visits & (prob < 1.0), s / (s + (1.0 - prob)), prob)
        self.visited[nobody] = False
        self.prob[nodes] = prob
        return p

    def left(self, nodes: Tensor, laws_at: LawsAt) -> Tensor:
        """The laws to draw from where these nodes are accepted, shape `(nodes, vocab)`."""
        own = self._law_of[nodes]
        if not self._laws:
            return laws_at(nodes)
        return torch.where((own >= 0)[:, None], torch.cat(self._laws)[own.clamp(min=0)], laws_at(nodes))


TESTED: dict[DrawnOrder, Callable[[DrawnTrees, LawsAt], Taken]] = {
    "in-turn": tested_in_turn,
    "leaves-first": tested_leaves_first,
}


def _number(trees: DrawnTrees, used: Tensor) -> Tensor:
    """The next number of each tree, shape `(trees,)`."""
    return _numbers(trees, used[:, None])[:, 0]


def _numbers(trees: DrawnTrees, at: Tensor) -> Tensor:
    return trees.numbers.gather(1, at.clamp(max=trees.numbers.shape[1] - 1))


def _shows_heads(number: Tensor, prob: Tensor) -> Tensor:
    """As `Choices.coin` by inversion: its two outcomes are tails and heads, which come with 1 - p and p."""
    tails = 1.0 - prob
    return (prob > 0) & (number * (tails + prob) >= tails)


def _of(laws: Tensor, tokens: Tensor) -> Tensor:
    return laws.gather(1, tokens[:, None])[:, 0]


def _ratio(p: Tensor, q: Tensor) -> Tensor:
    return torch.where(p >= q, 1.0, p / q)


def _without(laws: Tensor, tokens: Tensor) -> Tensor:
    """As `talon_core.drawn.without`, one token of each row."""
    rest = laws.scatter(1, tokens[:, None], 0.0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, rest)
