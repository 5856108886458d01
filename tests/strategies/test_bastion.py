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
from talon_tests.connected_trees import ROOT, best_of_layers, children


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


def drafted_of(draft, costs, drafter, **options):
    return draft(Bastion(**options).begin(SequenceInfo(30, 64, 0.0, costs)), drafter)


def tree_of(draft, costs, drafter, **options):
    return drafted_of(draft, costs, drafter, **options).tree


def papers_nodes(probs, seconds, drafting, budget):
    """Add best-first nodes while rho (T_draft + T_other + C(n)) > Phi (C(n + 1) - C(n)); how many, and their rate."""
    phi, nodes = 1.0, 1
    for rho in probs[: budget - 1]:
        brings, takes = rho * (drafting + seconds(nodes)), phi * (seconds(nodes + 1) - seconds(nodes))
        assume(abs(brings - takes) > 1e-6)
        if brings <= takes:
            break
        phi, nodes = phi + rho, nodes + 1
    return nodes - 1, phi / (drafting + seconds(nodes))


def papers_tree(drafter, costs, budget, depth):
    """That rule for what each further layer has brought, as long as it raises the rate, on plain dictionaries."""

    def seconds(nodes):
        return costs.other + costs.verify(nodes, 30)

    scored, expanded, before, layers = {}, {ROOT: 1.0}, 1.0 / seconds(1), 0
    while expanded and layers < depth:
        layers += 1
        newest = children(drafter, expanded)
        scored |= newest
        ranked = sorted(scored, key=scored.__getitem__, reverse=True)
        values = np.array([scored[path] for path in ranked])
        assume((values[1:] < values[:-1] * (1 - 1e-9)).all())
        nodes, rate = papers_nodes(values.tolist(), seconds, layers * costs.layer, budget)
        assume(abs(rate - before) > 1e-6)
        if rate <= before:
            break
        before, expanded = rate, {path: newest[path] for path in ranked[:nodes] if path in newest}
    return {ROOT, *ranked[:nodes]}, layers


rooflines_of_passes = {
    "knee": st.integers(3, 7),
    "slopes": st.tuples(st.sampled_from([0.0, 0.01, 0.1]), st.sampled_from([0.2, 0.5, 1.0])),
    "layer": st.sampled_from([0.0, 0.1, 0.5]),
    "other": st.sampled_from([0.0, 0.3]),
}


def roof(knee, slopes, layer, other):
    """Passes that are compute-bound from `knee` nodes on."""
    low, high = slopes
    return Roof(1.0, low, 1.0 + (low - high) * knee, high, layer, other)


DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


@DEPTHS
@given(drafter=st.integers(2, 20).flatmap(untied_drafters), budget=st.integers(10, 32), **rooflines_of_passes)
def test_the_tree_is_the_papers(draft, paths, depth, drafter, budget, knee, slopes, layer, other):
    costs = roof(knee, slopes, layer, other)
    expected, layers = papers_tree(drafter, costs, budget, depth)
    drafted = drafted_of(draft, costs, drafter, budget=budget, depth=depth)
    assert paths(drafted.tree) == expected
    assert drafted.drafted.depths.max() <= layers


@pytest.mark.parametrize(("vocab", "depth"), [(9, 1), (3, 2), (2, 3)])
@given(data=st.data(), budget=st.integers(10, 14), **rooflines_of_passes)
def test_of_all_connected_trees_of_what_was_drafted_it_has_the_highest_rate(
    draft, paths, vocab, depth, data, budget, knee, slopes, layer, other
):
    """As its rule adds a node where that raises the rate, and a roofline is convex; up to 729 trees are tried."""
    costs, drafter = roof(knee, slopes, layer, other), data.draw(untied_drafters(vocab))

    def rate(phi, nodes, layers):
        return phi / (layers * layer + other + costs.verify(nodes, 30))

    expected, layers = best_of_layers(drafter, rate, budget, depth, apart=1e-6)
    drafted = drafted_of(draft, costs, drafter, budget=budget, depth=depth)
    assert paths(drafted.tree) == expected
    assert drafted.drafted.depths.max() <= layers


def test_a_tree_by_hand(draft):
    """A pass takes a second up to three nodes, and half a second more for each from there on.

    .5 and .3 are free. With them Phi is 1.8 and C(3) = 1: the next one, .15, brings .15 x 1 and takes 1.8 x .5. Where
    the rest of the round takes 9 seconds more it brings .15 x 10 > .9 and joins; then .05 x 10.5 = .525 <= 1.95 x .5.
    """
    drafter = TableDrafter([[0.5, 0.3, 0.15, 0.05]])
    assert len(tree_of(draft, Roof(1, 0, -0.5, 0.5), drafter, budget=12, depth=1)) == 3
    for costs in (Roof(1, 0, -0.5, 0.5, layer=9.0), Roof(1, 0, -0.5, 0.5, other=9.0)):
        assert len(tree_of(draft, costs, drafter, budget=12, depth=1)) == 4


A, B, C, AA, AB, BA, AAA = (0, 0), (0, 1), (0, 2), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("other", "depth", "tree", "layers"),
    [
        (0.0, 1, {A, B}, 1),
        (0.0, 2, {A, AA}, 2),
        (0.0, 3, {A, AA}, 3),
        (0.0, 9, {A, AA}, 3),
        (9.0, 1, {A, B, C}, 1),
        (9.0, 2, {A, B, AA, AB, BA}, 2),
        (9.0, 3, {A, B, AA, AB, BA, AAA}, 3),
    ],
)
def test_trees_of_several_layers_by_hand(draft, paths, other, depth, tree, layers):
    """The same passes; the law is .7, .2 and .1 after every path, and a layer takes a tenth of a second.

    Where the rest of a round takes no time, two nodes are free, and the third brings less than it takes. One layer: .1
    brings .1 x 1.1 and takes 1.9 x .5; 1.9 / 1.1 = 1.727 tokens a second are more than the 1 / 1 of no draft. Two: .7
    and .49 are free, .2 x 1.2 < 2.19 x .5; 2.19 / 1.2 = 1.825 are more. Three: .343 x 1.3 < 2.19 x .5; 2.19 / 1.3 are
    less, so no fourth.

    Where it takes 9 seconds, more is worth it. One layer: .1 x 10.1 > 1.9 x .5, and no more is there; 2 / 10.6 = .189
    are more than 1 / 10. Two: .2 x 10.2 > 2.19 x .5, twice .14 x 10.7 > 2.39 x .5 and .14 x 11.2 > 2.53 x .5, but
    .1 x 11.7 < 2.67 x .5; 2.67 / 11.7 = .228. Three: .343 x 10.3 > 2.19 x .5, .2 x 10.8 > 2.533 x .5, .14 x 11.3 >
    2.733 x .5, .14 x 11.8 > 2.873 x .5, but .1 x 12.3 < 3.013 x .5.
    """
    costs = Roof(1, 0, -0.5, 0.5, layer=0.1, other=other)
    drafted = drafted_of(draft, costs, TableDrafter([[0.7, 0.2, 0.1]]), budget=12, depth=depth)
    assert paths(drafted.tree) == {ROOT, *tree}
    assert drafted.drafted.depths.max() == layers


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
