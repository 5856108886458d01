"""DySpec's dynamic trees of draws."""

import heapq
from bisect import bisect_left

import attrs
import numpy as np
from attrs.validators import ge, gt

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drawn import Drawn, sharpened, without
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import FloatArray, TokenTree
from talon_strategies.drawing import NOTHING, FollowsTheRequest, known_rows


@attrs.frozen
class DySpec(FollowsTheRequest):
    """Draws the next child wherever the tree is likeliest to be tested (DySpec, arXiv 2410.11744, algorithm 1).

    A place where a child may be drawn has a value: the estimated probability that verification comes to test it. If y
    is drawn from the law R at a place of value v, its first child's place has value v R(y), and its next sibling's
    v (1 - R(y)), where R goes on without y. The tree is the `budget` - 1 places of the highest values.

    A place's value is known before its token is drawn and no lower than what comes after it, so choosing the best
    places does not look at what came out of them; that keeps the drawn children's laws. The paper fills one place after
    the other. Here a whole layer is filled at once, as far as its places are among the best so far, and `finish` keeps
    the best of all layers: the same tree in one draft pass a layer.

    Attributes:
        budget: nodes of the tree, the root included, at least 2.
        depth: most layers, at least 1; one draft pass each.
        temperature: tokens are drawn from the drafter's law at so many times the request's temperature, more than 0.
        follows: False draws at `temperature` itself, whatever the request's is.
    """

    name = "dyspec"
    paper = "arXiv 2410.11744"
    children = "without-replacement"
    default_rule = "traversal"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    depth: int = attrs.field(default=10, validator=[whole_number, ge(1)], metadata=searched(1, 12))
    temperature: float = attrs.field(default=1.0, validator=[number, gt(0)], metadata=searched(0.4, 1.2))
    follows: bool = attrs.field(default=True, validator=yes_or_no)

    @property
    def draft_budget(self) -> int:
        return 1 + self.depth * (self.budget - 1)

    def width(self, tree: TokenTree) -> int:
        return 1

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        own, below = place_values(tree)
        earlier = np.sort(own[1:]).tolist()  # places of earlier layers
        rows = {}
        for row in known_rows(candidates):
            law = sharpened(candidates.law(row), self.temperature)
            rows[row] = _Siblings(float(below[candidates.frontier[row]]), law, law)
        places = [(-siblings.value, row) for row, siblings in rows.items()]
        heapq.heapify(places)
        made: list[float] = []
        while True:
            value, row = -places[0][0], places[0][1]
            better = len(made) + len(earlier) - bisect_left(earlier, value)
            if better >= self.budget - 1 or value <= 0:
                break  # what is left has no higher values
            made.append(value)
            rows[row].draw(choices)
            heapq.heapreplace(places, (-rows[row].value, row))
        drawn = {row: Drawn(siblings.tokens, siblings.law) for row, siblings in rows.items() if siblings.tokens}
        if int(tree.depths[candidates.frontier[0]]) + 1 == self.depth:
            return Growth(NOTHING, NOTHING, drawn)
        values = sorted([*earlier, *made], reverse=True)
        least = values[self.budget - 2] if len(values) >= self.budget - 1 else 0.0
        first = np.concatenate([_values(rows[row].first, one)[1] for row, one in drawn.items()])
        return Growth(NOTHING, len(tree) + np.flatnonzero(first > least), drawn)

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(np.argsort(-place_values(tree)[0], kind="stable")[: self.budget])


@attrs.define
class _Siblings:
    """The children of one node while they are drawn.

    Attributes:
        first: the value of the first one's place.
        law: what the first one is drawn from, shape `(vocab,)`.
        rest: what the next one is drawn from, shape `(vocab,)`.
        taken: how much of the law has been drawn.
        tokens: what has been drawn.
    """

    first: float
    law: FloatArray
    rest: FloatArray
    taken: float = 0.0
    tokens: list[int] = attrs.field(factory=list)

    @property
    def value(self) -> float:
        """The value of the next one's place; 0 if nothing is left to be drawn."""
        return self.first * max(1.0 - self.taken, 0.0) if self.rest.any() else 0.0

    def draw(self, choices: Choices) -> None:
        """Draw the next one."""
        token = choices.pick(self.rest)
        self.tokens.append(token)
        self.taken += float(self.law[token])
        self.rest = without(self.rest, token)


def place_values(tree: TokenTree) -> tuple[FloatArray, FloatArray]:
    """For each node of a tree of draws the value of its place, and of its first child's; both of shape `(nodes,)`.

    The root's place is above all others. No place is above its parent's, or that of the sibling before it, not even by
    rounding; and none depends on what was drawn there.
    """
    own, below = np.full(len(tree), np.inf), np.ones(len(tree))
    for node in sorted(tree.drawn):  # parents first
        children = np.flatnonzero(tree.parents == node)  # in the order of their draws
        own[children], below[children] = _values(below[node], tree.drawn[node])
    return own, below


def _values(first: float, drawn: Drawn) -> tuple[FloatArray, FloatArray]:
    """For each draw under one node the value of its place, and of its first child's; both of shape `(draws,)`.

    Args:
        first: the value of the first draw's place.
        drawn: without replacement.
    """
    prob = drawn.law[drawn.tokens]
    left = np.maximum(1.0 - np.concatenate([[0.0], np.cumsum(prob[:-1])]), 0.0)
    return first * left, first * np.minimum(prob, left)
