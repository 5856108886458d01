import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.costs import Costs
from talon_core.policy import SequenceInfo
from talon_core.testing import TableDrafter, untied_drafters
from talon_strategies import Bastion
from talon_strategies.bastion import rooflines


@attrs.frozen
class Roof(Costs):
    """Passes that are memory-bound, and compute-bound from some size on; the rest of a round takes `other`."""

    a: float
    b: float
    c: float
    d: float
    layer: float = 0.0
    other: float = 0.0

    def verify(self, nodes, context, batch=1):
        return max(self.a + self.b * nodes, self.c + self.d * nodes)

    def draft(self, rows, width):
        return self.layer

    def accept(self, nodes):
        return self.other / 2

    def tell(self, tokens):
        return self.other / 2


def tree_of(draft, costs, drafter, **options):
    return draft(Bastion(**options).begin(SequenceInfo(30, 64, 0.0, costs)), drafter).tree


def papers_tree(drafter, costs, budget):
    """Best-first nodes of one layer, while rho (T_draft + T_other + C(n)) > Phi (C(n + 1) - C(n))."""
    law, phi, tree = drafter.law_after((0,)).tolist(), 1.0, {(0,)}
    for token in sorted(range(len(law)), key=law.__getitem__, reverse=True)[: budget - 1]:
        nodes, rho = len(tree), law[token]
        seconds, more = costs.verify(nodes, 30), costs.verify(nodes + 1, 30) - costs.verify(nodes, 30)
        brings, takes = rho * (costs.layer + costs.other + seconds), phi * more
        assume(abs(brings - takes) > 1e-6)
        if brings <= takes:
            break
        phi += rho
        tree.add((0, token))
    return tree


@given(
    drafter=st.integers(2, 20).flatmap(untied_drafters),
    budget=st.integers(10, 32),
    knee=st.integers(3, 7),
    slopes=st.tuples(st.sampled_from([0.0, 0.01, 0.1]), st.sampled_from([0.2, 0.5, 1.0])),
    layer=st.sampled_from([0.0, 0.1, 0.5]),
    other=st.sampled_from([0.0, 0.3]),
)
def test_the_tree_is_the_papers(draft, paths, drafter, budget, knee, slopes, layer, other):
    low, high = slopes
    costs = Roof(1.0, low, 1.0 + (low - high) * knee, high, layer, other)
    tree = tree_of(draft, costs, drafter, budget=budget, depth=1)
    assert paths(tree) == papers_tree(drafter, costs, budget)


def test_a_tree_by_hand(draft):
    """A pass takes a second up to three nodes, and half a second more for each from there on.

    .5 and .3 are free. With them Phi is 1.8 and C(3) = 1: the next one, .15, brings .15 x 1 and takes 1.8 x .5. Where
    the rest of the round takes 9 seconds more it brings .15 x 10 > .9 and joins; then .05 x 10.5 = .525 <= 1.95 x .5.
    """
    drafter = TableDrafter([[0.5, 0.3, 0.15, 0.05]])
    assert len(tree_of(draft, Roof(1, 0, -0.5, 0.5), drafter, budget=12, depth=1)) == 3
    for costs in (Roof(1, 0, -0.5, 0.5, layer=9.0), Roof(1, 0, -0.5, 0.5, other=9.0)):
        assert len(tree_of(draft, costs, drafter, budget=12, depth=1)) == 4


def roofline(sizes, seconds):
    """One of them, by itself."""
    return tuple(float(each[0]) for each in rooflines(sizes, seconds[None]))


coefficient = st.floats(0.01, 10)


@given(coefficient, coefficient, coefficient, st.integers(3, 17), st.integers(20, 400))
def test_a_roofline_is_found_again(offset, low, more, knee, most):
    sizes = np.unique(np.geomspace(1, most, 32).round().astype(int))
    high = low + more
    lines = np.array([offset + (high - low) * knee + low * sizes, offset + high * sizes])
    seconds = lines.max(axis=0)
    assume((sizes < knee).sum() >= 2)
    assume((sizes > knee).sum() >= 2)
    a, b, c, d = roofline(sizes, seconds)
    assert np.maximum(a + b * sizes, c + d * sizes) == pytest.approx(seconds, rel=1e-6)
    assert [b, d] == pytest.approx([low, high], rel=1e-4)


@given(st.lists(st.floats(0.01, 5), min_size=4, max_size=12))
def test_no_other_split_fits_better(steps):
    sizes, seconds = np.arange(1, len(steps) + 1), np.cumsum(steps)

    def error(a, b, c, d):
        return np.square(np.maximum(a + b * sizes, c + d * sizes) - seconds).sum()

    one = np.polyfit(sizes, seconds, 1)[::-1]
    splits = [(*one, *one)]
    for first in range(2, len(sizes) - 1):
        sides = (slice(None, first), slice(first, None))
        splits.append(tuple(np.concatenate([np.polyfit(sizes[side], seconds[side], 1)[::-1] for side in sides])))
    assert error(*roofline(sizes, seconds)) == pytest.approx(min(error(*split) for split in splits), abs=1e-9)


def test_few_points_are_one_line():
    assert roofline(np.array([1]), np.array([2.0])) == (2.0, 0.0, 2.0, 0.0)
    assert roofline(np.array([1, 2]), np.array([2.0, 3.0])) == pytest.approx((1.0, 1.0, 1.0, 1.0))
    assert roofline(np.array([1, 2, 3]), np.array([2.0, 2.0, 5.0])) == pytest.approx((0, 1.5, 0, 1.5))


@given(st.lists(st.lists(st.floats(0.01, 5), min_size=9, max_size=9), min_size=2, max_size=5))
def test_several_rooflines_are_those_of_each(steps):
    sizes, seconds = np.arange(1, 10), np.cumsum(steps, axis=-1)
    together = np.array(rooflines(sizes, seconds)).T
    assert [tuple(each) for each in together.tolist()] == [roofline(sizes, one) for one in seconds]
