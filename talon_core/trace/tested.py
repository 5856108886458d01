"""Trees at many positions whose drawn children are tested at once, as rules say that they test them.

What a rejection leaves of the target's law p is in proportion to (p - b q)+, where q is the law of a node's first draw:
with each rejection b grows by what is left, in units of what is left of q. So tests need the probabilities of what was
drawn and the sum of (p - b q)+, of which bounds are kept with a trace, see `talon_core.trace.law_sums`. A tree whose
tests these bounds do not decide is left to the rule itself.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.choices import BLOCK
from talon_core.engine.growing_forest import DrawnLayer
from talon_core.forest import Forest
from talon_core.rule import DrawnOrder
from talon_core.trace.columns import NO_ROW
from talon_core.trace.law_sums import LEVELS, ROUNDING, TARGET, left_of
from talon_core.trace.several_laws import NotKept, Numbers, SeveralDraws, SeveralLaws
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import places_of

Bools = NDArray[np.bool_]

NONE = np.arange(0)

NOBODY = -1
"""In the place of a node that is none."""

UNSURE = -2
"""In the place of a token that is not known."""

AT_ONCE = 64
"""Nodes whose laws are read together."""


@attrs.frozen(eq=False)
class Bounds:
    """Numbers that are not known but for bounds.

    Attributes:
        least: shape `(numbers,)`.
        most: likewise.
    """

    least: FloatArray
    most: FloatArray

    @classmethod
    def all_of(cls, value: float, count: int) -> "Bounds":
        """The same number, which is known."""
        return cls(np.full(count, value), np.full(count, value))

    def where(self, some: Bools, others: "Bounds") -> "Bounds":
        """These for some, others for the others."""
        return Bounds(np.where(some, self.least, others.least), np.where(some, self.most, others.most))

    def at(self, places: Any) -> "Bounds":
        """Those at some places."""
        return Bounds(self.least[places], self.most[places])


def ratio(p: Bounds, q: FloatArray) -> Bounds:
    """min(1, p/q), for q that is more than 0."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return Bounds(*(np.where(each >= q, 1.0, each / q) for each in (p.least, p.most)))


@attrs.define(eq=False)
class _Leaving:
    """What the tests of some nodes' children have left of the target's laws there.

    Attributes:
        b: how often q is taken from p.
        total: what (p - b q)+ adds up to.
    """

    b: Bounds
    total: Bounds

    @classmethod
    def untested(cls, count: int) -> "_Leaving":
        """All of it."""
        return cls(Bounds.all_of(0.0, count), Bounds.all_of(1.0, count))

    def of(self, p: FloatArray, q: FloatArray) -> Bounds:
        """What is left of p, where q is known, as a probability."""
        with np.errstate(invalid="ignore", divide="ignore"):
            least = np.maximum(p - _times(self.b.most, q), 0.0) / self.total.most
            most = np.maximum(p - _times(self.b.least, q), 0.0) / self.total.least
        return Bounds(np.nan_to_num(least), np.where(np.isnan(most), np.inf, most))


def _times(b: FloatArray, q: FloatArray) -> FloatArray:
    """Their product, 0 where q is: nothing is taken then, however often."""
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.where(q > 0, b * q, 0.0)
    return found


class DrawnTrees:
    """The trees of a forest with what was drawn in them, and the laws at their nodes.

    Args:
        forest: they.
        layers: what was drawn in each.
        rows: of each node, `NO_ROW` where it was not drafted from, shape `(nodes,)`.
        laws: at them.
        numbers: with which they are tested.
        ends: tokens that end a text.

    Raises:
        NotKept: if the draws are of several kinds.
    """

    def __init__(
        self,
        forest: Forest,
        layers: list[DrawnLayer | None],
        rows: IntArray,
        laws: SeveralLaws,
        numbers: Numbers,
        ends: list[int],
    ) -> None:
        self.forest, self.rows, self.laws, self.numbers = forest, rows, laws, numbers
        self.ends: Bools = np.isin(forest.tokens, ends)
        self.ends[: forest.size] = False  # nothing is said of a root, which is not tested
        self._layers = [layer for layer in layers if layer is not None and len(layer.parents)]
        own = [layer.draws for layer in self._layers]
        self.draws: list[SeveralDraws] = [each for each in own if isinstance(each, SeveralDraws)]
        kinds = {(each.temperature, each.replacement) for each in self.draws}
        if len(self.draws) < len(own) or len(kinds) > 1:
            raise NotKept
        self.temperature, self.replacement = kinds.pop() if kinds else (0, True)
        self._lay_out()
        self._lay_out_fixed()

    def _lay_out(self) -> None:
        """By node that has drawn children: what was drawn there, in which order."""
        forest = self.forest
        parents, nodes, prob, left = NONE, NONE, np.empty(0), np.empty(0)
        if self._layers:
            parents = np.concatenate([layer.parents for layer in self._layers])
            nodes = np.concatenate([layer.nodes for layer in self._layers])
            ordered = [(draws, layer.order) for draws, layer in zip(self.draws, self._layers, strict=True)]
            prob = np.concatenate([draws.prob[order] for draws, order in ordered])
            left = np.concatenate([draws.left[order] for draws, order in ordered])
        held = np.bincount(parents, minlength=len(forest))
        (self.drawing,) = held.nonzero()  # nodes that have drawn children
        self.counts = held[self.drawing]
        self.slot_of = np.full(len(forest), NOBODY)
        self.slot_of[self.drawing] = np.arange(len(self.drawing))
        most = int(self.counts.max(initial=0))
        order = parents.argsort(kind="stable")  # draws of a node stand in their order
        turn = np.arange(len(order)) - np.repeat(self.counts.cumsum() - self.counts, self.counts)
        slot = self.slot_of[parents[order]]
        self.children = np.full((len(self.drawing), most), NOBODY)
        self.children[slot, turn] = nodes[order]
        self.q = np.ones(self.children.shape)
        self.q[slot, turn] = prob[order]
        self.left = np.ones(self.q.shape)  # of q before each draw
        self.left[slot, turn] = left[order]

    def _lay_out_fixed(self) -> None:
        """What the laws of draws leave out, by node, and what they add up to with it, in units of what is left."""
        self.scale, self.totals = np.ones(len(self.drawing)), np.ones(len(self.drawing))
        slots, tokens = [NONE], [NONE]
        for layer, draws in zip(self._layers, self.draws, strict=True):
            of_row = np.full(len(draws.totals), NOBODY)
            of_row[draws.rows[layer.order]] = self.slot_of[layer.parents]
            (drawn,) = (of_row != NOBODY).nonzero()
            self.scale[of_row[drawn]] = draws.whole[drawn] / draws.totals[drawn]
            self.totals[of_row[drawn]] = draws.totals[drawn]
            here = of_row[draws.out_rows] != NOBODY
            slots.append(of_row[draws.out_rows[here]])
            tokens.append(draws.out_tokens[here])
        own = np.concatenate(slots)
        order = own.argsort(kind="stable")
        self._out_tokens = np.concatenate(tokens)[order]
        self._out_held = np.bincount(own, minlength=len(self.drawing))
        self._out_begins = self._out_held.cumsum() - self._out_held

    def p(self, slots: IntArray, turn: int) -> FloatArray:
        """The target's probabilities of what was drawn at some nodes, of one draw of each, shape `(slots,)`."""
        tokens = self.forest.tokens[self.children[slots, turn]]
        return self._by_row(self.laws.of_target, self.rows[self.drawing[slots]], tokens)

    @staticmethod
    def _by_row(look_up: Callable[[IntArray, IntArray], FloatArray], rows: IntArray, tokens: IntArray) -> FloatArray:
        """What is looked up of some rows, which stand there text by text."""
        order, found = rows.argsort(kind="stable"), np.empty(len(rows))
        if len(rows):
            found[order] = look_up(rows[order], tokens[order])
        return found

    def left_by(self, slots: IntArray, b: Bounds) -> Bounds:
        """What (p - b q)+ adds up to at some nodes with drawn children."""
        rows = self.rows[self.drawing[slots]]
        order, sums = rows.argsort(kind="stable"), np.empty((len(rows), 2 * len(LEVELS)))
        sums[order] = self.laws.sums(rows[order], self.laws.layout.levels(self.temperature))
        p, q = sums[:, : len(LEVELS)], sums[:, len(LEVELS) :]
        with np.errstate(over="ignore"):
            scaled = b.least * self.scale[slots], b.most * self.scale[slots]
        least, most = left_of(p, q, *scaled)
        held = self._out_held[slots]
        if held.any():  # there q is nothing, so that all of p stays
            which, places = np.repeat(np.arange(len(slots)), held), places_of(self._out_begins[slots], held)
            tokens = self._out_tokens[places]
            own_p = self._by_row(self.laws.of_target, rows[which], tokens)
            own_q = self._by_row(partial(self.laws.of_drafter, self.temperature), rows[which], tokens)
            own_q /= self.totals[slots][which]
            for bound, times in ((least, b.most), (most, b.least)):
                more = own_p - np.maximum(own_p - _times(times[which], own_q), 0.0)
                bound += np.bincount(which, weights=more, minlength=len(slots))
        return Bounds(least, np.minimum(most, 1.0))

    def token_of_rest(self, nodes: IntArray, taken: FloatArray, numbers: FloatArray) -> IntArray:
        """What is drawn at some nodes from what is left of the target's laws, as `Choices.pick` finds it.

        Args:
            nodes: that were drafted from, shape `(nodes,)`.
            taken: how often q was taken from p, NaN where that is not known, likewise.
            numbers: of the draws, likewise.

        Returns:
            Shape `(nodes,)`; `UNSURE` where it is not known.
        """
        found = np.full(len(nodes), UNSURE)
        (known,) = (~np.isnan(taken)).nonzero()
        known = known[self.rows[nodes[known]].argsort(kind="stable")]
        whole, some = known[taken[known] == 0], known[taken[known] > 0]
        if len(whole):
            found[whole] = self.laws.target_draws(self.rows[nodes[whole]], numbers[whole])
        for first in range(0, len(some), AT_ONCE):
            part = some[first : first + AT_ONCE]
            found[part] = self._token_left(nodes[part], taken[part], numbers[part])
        return found

    def _token_left(self, nodes: IntArray, taken: FloatArray, numbers: FloatArray) -> IntArray:
        """The same where q was taken, of nodes that stand text by text: blocks of p that hold nothing are not read."""
        laws, rows, slots = self.laws, self.rows[nodes], self.slot_of[nodes]
        of, block = (laws.sums(rows, TARGET) > 0).nonzero()
        kept = laws.blocks("target", rows[of], block)
        part, place = divmod((kept.ravel() > 0).nonzero()[0], BLOCK)  # of truth values sooner found
        of, token = of[part], block[part] * BLOCK + place
        p = kept[part, place] / laws.totals("target", rows)[of]
        q = laws.weights_of(self.temperature, rows, of, token) / self.totals[slots][of]
        held = self._out_held[slots]
        out = np.repeat(np.arange(len(slots)), held) * laws.layout.vocab_size
        out += self._out_tokens[places_of(self._out_begins[slots], held)]
        q[np.isin(of * laws.layout.vocab_size + token, out)] = 0.0
        ends = np.maximum(p - taken[of] * q, 0.0).cumsum()
        last = of.searchsorted(np.arange(len(nodes)), side="right") - 1
        before = np.concatenate([[0.0], ends[last[:-1]]])
        total = ends[last] - before
        below = np.minimum(numbers * total, np.nextafter(total, -1.0)) + before
        chosen = np.minimum(ends.searchsorted(below, side="right"), last)
        return np.where(total > ROUNDING, token[chosen], UNSURE)

    def children_holding(self, nodes: IntArray, tokens: IntArray) -> IntArray:
        """The children of some nodes that hold these tokens, `NOBODY` where there is none, shape `(nodes,)`."""
        forest, which = self.forest, np.full(len(self.forest), NOBODY)
        which[nodes] = np.arange(len(nodes))
        below = np.arange(forest.size, len(forest))
        of = which[forest.parents[below]]
        below, of = below[of != NOBODY], of[of != NOBODY]
        same = forest.tokens[below] == tokens[of]
        found = np.full(len(nodes), NOBODY)
        found[of[same]] = below[same]
        return found

    @cached_property
    def fixed(self) -> Bools:
        """Whether a node has fixed children, shape `(nodes,)`."""
        forest = self.forest
        drawn = np.zeros(len(forest), dtype=bool)
        drawn[self.children[self.children >= 0]] = True
        found = np.zeros(len(forest), dtype=bool)
        own = ~drawn
        own[: forest.size] = False
        found[forest.parents[own]] = True
        return found


@attrs.frozen(eq=False)
class Outcome:
    """What became of trees.

    Attributes:
        last: the node with which each path ends, shape `(trees,)`.
        undecided: trees of which that is not known.
    """

    last: IntArray
    undecided: Bools


def tested_in_turn(trees: DrawnTrees) -> Outcome:
    """Test the children of a node in the order of their draws; draw from what is left if none is accepted.

    As `talon_strategies.rules.descent.reject_in_turn`, for all trees at once, depth by depth.
    """
    forest = trees.forest
    node, used = np.arange(forest.size), np.zeros(forest.size, dtype=np.int64)
    undecided = np.zeros(forest.size, dtype=bool)
    goes_on = trees.rows[node] != NO_ROW
    while goes_on.any():
        (own,) = goes_on.nonzero()
        at = node[own]
        child, unsure, taken = _tested_children(trees, own, at, used)
        (others,) = ((child == NOBODY) & ~unsure).nonzero()
        drawing = others[trees.fixed[at[others]]]
        if len(drawing):
            token = trees.token_of_rest(at[drawing], taken[drawing], trees.numbers.at(own[drawing], used[own[drawing]]))
            child[drawing] = np.where(token == UNSURE, NOBODY, trees.children_holding(at[drawing], token))
            unsure[drawing] = token == UNSURE
        used[own[others]] += 1
        undecided[own[unsure]] = True
        went = (child != NOBODY) & ~unsure
        reached = child[went]
        stays = trees.ends[reached]  # the text ends with it: it is no part of the path
        goes_on[own] = False
        node[own[went]] = np.where(stays, at[went], reached)
        further = reached[~stays]
        goes_on[own[went][~stays]] = (trees.slot_of[further] != NOBODY) | trees.fixed[further]
    return Outcome(node, undecided)


def _tested_children(
    trees: DrawnTrees, own: IntArray, at: IntArray, used: IntArray
) -> tuple[IntArray, Bools, FloatArray]:
    """Test the drawn children of a node of each of some trees.

    Returns:
        The child that is accepted; whether that is not known; and how often q is taken from p where all are rejected,
        NaN where that is not known.
    """
    child, unsure = np.full(len(own), NOBODY), np.zeros(len(own), dtype=bool)
    taken = np.zeros(len(own))
    (testing,) = (trees.slot_of[at] != NOBODY).nonzero()
    slots = trees.slot_of[at[testing]]
    leaving = _Leaving.untested(len(testing))
    for turn in range(int(trees.counts[slots].max(initial=0))):
        p, q, left = trees.p(slots, turn), trees.q[slots, turn], trees.left[slots, turn]
        with np.errstate(over="ignore"):
            prob = ratio(leaving.of(p, q), q / left)
        number = trees.numbers.at(own[testing], used[own[testing]])
        used[own[testing]] += 1
        heads, tails = _coins(prob, number)
        child[testing[heads]] = trees.children[slots[heads], turn]
        unsure[testing[~(heads | tails)]] = True
        testing, slots = testing[tails], slots[tails]
        if not len(testing):
            break
        b, total = leaving.b.at(tails), leaving.total.at(tails)
        with np.errstate(over="ignore"):
            b = Bounds(b.least + total.least / left[tails], b.most + total.most / left[tails])
        taken[testing] = np.where(b.least == b.most, b.least, np.nan)
        more = trees.counts[slots] > turn + 1
        testing, slots, b = testing[more], slots[more], b.at(more)
        leaving = _Leaving(b, trees.left_by(slots, b))
    return child, unsure, taken


def _coins(prob: Bounds, number: FloatArray) -> tuple[Bools, Bools]:
    """Where coins show heads for sure, and where tails, as `Choices.coin` shows them by inversion."""
    heads = (prob.least > 0) & (number >= 1.0 - prob.least)
    tails = (prob.most <= 0) | (number < 1.0 - prob.most)
    return heads, tails


def tested_leaves_first(trees: DrawnTrees) -> Outcome:
    """Test trees from their leaves to their roots.

    As `talon_strategies.rules.traversal.Traversal`, and for a chain as `Block`. A walk ends with the first node that is
    accepted, so what it is accepted with is known without making the tests before: all of them have failed.
    """
    forest = trees.forest
    visited, unsure = np.zeros(len(forest), dtype=bool), np.zeros(len(forest), dtype=bool)
    prob = Bounds.all_of(0.0, len(forest))
    visited[: forest.size] = True
    prob.least[: forest.size] = prob.most[: forest.size] = 1.0
    for layer in forest.layers:
        slots = trees.slot_of[layer.first : layer.first + len(layer)]
        slots = slots[slots != NOBODY]
        nodes = trees.drawing[slots]
        slots = slots[visited[nodes] & ~trees.ends[nodes]]
        if len(slots):
            _visit_children(trees, slots, prob, visited, unsure)
    return _first_accepted(trees, prob, visited, unsure)


def _visit_children(trees: DrawnTrees, slots: IntArray, prob: Bounds, visited: Bools, unsure: Bools) -> None:
    """Visit the drawn children of some nodes, and reject them."""
    nodes = trees.drawing[slots]
    own, leaving = prob.at(nodes), _Leaving.untested(len(slots))
    gone: list[tuple[FloatArray, FloatArray, Bounds]] = []  # p and q of what was rejected, and b at that time
    for turn in range(int(trees.counts[slots].max())):
        there = (trees.counts[slots] > turn) & (own.most > 0)
        unsure[nodes[there & (own.least <= 0)]] = True
        p, q, left = np.zeros(len(slots)), trees.q[slots, turn], trees.left[slots, turn]
        p[there] = trees.p(slots[there], turn)
        reached, child = leaving.of(p, q), trees.children[slots, turn]
        with np.errstate(invalid="ignore"):
            reaching = Bounds(own.least * reached.least, np.nan_to_num(own.most * reached.most, nan=np.inf))
            chance = ratio(reaching, q / left)
        visited[child[there]] = True
        prob.least[child[there]], prob.most[child[there]] = chance.least[there], chance.most[there]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            b = Bounds(
                leaving.b.least + np.nan_to_num(leaving.total.least / (own.most * left)),
                leaving.b.most + np.nan_to_num(leaving.total.most / (own.least * left), nan=np.inf, posinf=np.inf),
            )
        gone.append((p, q, b))
        total = _with_rejected(trees.left_by(slots, b), gone, b)
        with np.errstate(divide="ignore", invalid="ignore"):
            s = Bounds(
                np.nan_to_num(own.least * total.least / leaving.total.most),
                np.nan_to_num(own.most * total.most / leaving.total.least, nan=np.inf, posinf=np.inf),
            )
        stays = own.least >= 1.0  # 1 stays 1
        next_ = Bounds(
            np.where(stays, 1.0, _staying(own.least, s.least)), np.where(stays, 1.0, _staying(own.most, s.most))
        )
        own = next_.where(there, own)
        some = there & (total.most > 0)
        leaving = _Leaving(b.where(some, leaving.b), total.where(some, leaving.total))
    prob.least[nodes], prob.most[nodes] = own.least, own.most


def _with_rejected(total: Bounds, gone: list[tuple[FloatArray, FloatArray, Bounds]], b: Bounds) -> Bounds:
    """What (p - b q)+ adds up to, where of what was rejected before the latest no more was taken than at that time."""
    least, most = total.least.copy(), total.most.copy()
    for p, q, at in gone[:-1]:
        least += np.maximum(p - _times(at.most, q), 0.0) - np.maximum(p - _times(b.least, q), 0.0)
        most += np.maximum(p - _times(at.least, q), 0.0) - np.maximum(p - _times(b.most, q), 0.0)
    return Bounds(np.maximum(least, 0.0), most)


def _staying(prob: FloatArray, left: FloatArray) -> FloatArray:
    """s / (s + 1 - P), with which probability a node is accepted after a child of it was rejected."""
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.where(prob >= 1.0, 1.0, np.where(np.isinf(left), 1.0, left / (left + (1.0 - prob))))
    return found


def _first_accepted(trees: DrawnTrees, prob: Bounds, visited: Bools, unsure: Bools) -> Outcome:
    """The first node of each tree, from the leaves on, whose coin shows heads."""
    forest = trees.forest
    order = _leaves_first(trees)
    order = order[visited[order]]
    of = forest.trees[order]
    begins = np.concatenate([[True], of[1:] != of[:-1]]).nonzero()[0]
    turns = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    heads, tails = _coins(prob.at(order), trees.numbers.at(of, turns))
    undecided = np.zeros(forest.size, dtype=bool)
    undecided[forest.trees[unsure]] = True
    ended = np.where(tails, len(order), np.arange(len(order)))
    first = np.minimum.reduceat(ended, begins)
    node = order[first]  # the root's coin is sure
    undecided |= ~heads[first]
    return Outcome(np.where(trees.ends[node], forest.parents[node], node), undecided)


def _leaves_first(trees: DrawnTrees) -> IntArray:
    """The nodes tree by tree, each behind those below it, and these in the order of their draws."""
    forest = trees.forest
    sizes = np.ones(len(forest), dtype=np.int64)
    for layer in forest.layers[:0:-1]:
        np.add.at(sizes, layer.parents, sizes[layer.first : layer.first + len(layer)])
    begins = np.zeros(len(forest), dtype=np.int64)
    ends = sizes[: forest.size].cumsum()
    begins[: forest.size] = ends - sizes[: forest.size]
    for layer in forest.layers[1:]:
        own = sizes[layer.first : layer.first + len(layer)]
        order = layer.parents.argsort(kind="stable")
        ranked = layer.parents[order]
        before = own[order].cumsum() - own[order]
        new = np.concatenate([[True], ranked[1:] != ranked[:-1]])[: len(ranked)]
        base = np.repeat(before[new], np.diff(np.append(new.nonzero()[0], len(ranked))))
        begins[layer.first + order] = begins[ranked] + before - base
    found = np.empty(len(forest), dtype=np.int64)
    found[begins + sizes - 1] = np.arange(len(forest))
    return found


TESTED: dict[DrawnOrder, Any] = {"in-turn": tested_in_turn, "leaves-first": tested_leaves_first}
