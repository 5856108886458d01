from functools import cache
from itertools import product

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.costs import Costs
from talon_core.policy import SequenceInfo
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import CaDDTree
from talon_tests.connected_trees import best_of_layers, best_tree, whole_world

BOTH = pytest.mark.parametrize("fitted", [False, True], ids=["told", "fitted"])
"""Whether the costs are fitted, as the paper does."""


@attrs.frozen
class Prices(Costs):
    """Made-up prices.

    Attributes:
        passes: seconds of the target's passes over trees of 1, 2, ... nodes, rising.
        layer: of a layer of one row, as much as it is at the least.
        row: of each further row of it.
    """

    passes: tuple[float, ...]
    layer: float = 0.0
    row: float = 0.0

    def verify(self, nodes, context, batch=1):
        return self.passes[nodes - 1]

    def draft(self, rows, width):
        return self.layer + self.row * (rows - 1)


def convex(budget, flat, slope):
    """A pass that takes as long up to some size, and then more for each node."""
    return tuple(1.0 + slope * max(0, nodes - flat) for nodes in range(1, budget + 1))


@cache
def nearest_convex(passes):
    """The nearest costs that rise and bend upwards, of all ways to choose the sizes at which they bend."""
    nodes = np.arange(1.0, 1.0 + len(passes))
    hinges = np.column_stack([np.maximum(nodes - size, 0.0) for size in nodes[:-1]])
    found, least = None, np.inf
    for held in product([False, True], repeat=len(passes) - 1):
        columns = np.column_stack([np.ones(len(nodes)), hinges[:, held]])
        weights = np.linalg.lstsq(columns, np.array(passes), rcond=None)[0]
        distance = np.square(columns @ weights - passes).sum()
        if (weights[1:] >= 0).all() and distance < least:
            found, least = columns @ weights, distance
    return tuple(found.tolist())


def tree_of(draft, costs, drafter, depth=10, fitted=False):
    policy = CaDDTree(budget=len(costs.passes), depth=depth, convex=fitted)
    return draft(policy.begin(SequenceInfo(30, 64, 0.0, costs)), drafter)


def papers_size(probs, drafting, costs):
    """Add best-first nodes while theta strictly rises."""
    theta, phi, nodes = 1.0 / (drafting + costs.verify(1, 30)), 0.0, 0
    for prob in probs[: len(costs.passes) - 1]:
        higher = (1.0 + phi + prob) / (drafting + costs.verify(nodes + 2, 30))
        assume(abs(higher - theta) > 1e-9)
        if higher <= theta:
            break
        theta, phi, nodes = higher, phi + prob, nodes + 1
    return nodes, theta


def by_definition(drafter, costs, depth):
    """The rule on plain dictionaries: the tree's paths, and the layers that were drafted."""
    count = len(costs.passes) - 1
    scored, expanded, drafting, best, nodes, layers = {}, {(0,): 1.0}, 0.0, 1.0 / costs.verify(1, 30), 0, 0
    while expanded and layers < depth:
        layers += 1
        drafting += costs.draft(len(expanded), count)
        children = {
            (*path, token): prob * p
            for path, prob in expanded.items()
            for token, p in enumerate(drafter.law_after(path).tolist())
        }
        scored |= children
        ranked = sorted(scored, key=scored.__getitem__, reverse=True)
        values = np.array([scored[path] for path in ranked])
        assume((values[1:] < values[:-1] * (1 - 1e-9)).all())
        nodes, theta = papers_size(values.tolist(), drafting, costs)
        expanded = {path: children[path] for path in ranked[:nodes] if path in children}
        assume(abs(theta - best) > 1e-9)
        if theta <= best:
            break
        best = theta
    return {(0,), *ranked[:nodes]}, layers


@BOTH
@given(
    drafter=st.integers(2, 8).flatmap(untied_drafters),
    budget=st.integers(2, 25),
    flat=st.integers(1, 12),
    slope=st.sampled_from([0.001, 0.03, 0.2, 0.7]),
    layer=st.sampled_from([0.0, 0.02, 0.15, 0.6]),
    depth=st.integers(1, 5),
)
def test_the_tree_is_the_papers_for_convex_costs(draft, paths, fitted, drafter, budget, flat, slope, layer, depth):
    costs = Prices(convex(budget, flat, slope), layer, row=layer / 10)
    expected, layers = by_definition(drafter, costs, depth)
    drafted = tree_of(draft, costs, drafter, depth, fitted)
    assert paths(drafted.tree) == expected
    assert drafted.drafted.depths.max() <= layers


rising = st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.3, 1.0]), min_size=1, max_size=7).map(
    lambda steps: tuple(np.cumsum([1.0, *steps]).tolist())
)
"""Passes over trees of 1, 2, ... nodes, of which a further node may cost less than the one before."""

layers_cost = st.sampled_from([0.0, 0.02, 0.15, 0.6])

small_worlds = st.one_of(
    st.tuples(st.integers(2, 9).flatmap(untied_drafters), st.just(1)),
    st.tuples(untied_drafters(3), st.just(2)),
    st.tuples(untied_drafters(2), st.integers(2, 3)),
)
"""A drafter, and so many layers that all connected trees can be tried: at most 729."""


@given(drafter=st.integers(2, 8).flatmap(untied_drafters), passes=rising, layer=layers_cost, depth=st.integers(1, 5))
def test_with_fitted_costs_the_papers_rule_stands_for_any_others(draft, paths, drafter, passes, layer, depth):
    """Add best-first nodes while theta strictly rises, theta being that of the fitted costs."""
    fitted = Prices(nearest_convex(passes), layer, row=layer / 10)
    expected, layers = by_definition(drafter, fitted, depth)
    drafted = tree_of(draft, attrs.evolve(fitted, passes=passes), drafter, depth, fitted=True)
    assert paths(drafted.tree) == expected
    assert drafted.drafted.depths.max() <= layers


@BOTH
@given(small_worlds, rising, layers_cost)
def test_of_all_connected_trees_of_what_was_drafted_it_has_the_highest_rate(draft, paths, fitted, world, passes, layer):
    drafter, depth = world
    counted = nearest_convex(passes) if fitted else passes

    def rate(phi, nodes, layers):
        return phi / (layers * layer + counted[nodes - 1])

    expected, layers = best_of_layers(drafter, rate, len(passes), depth)
    drafted = tree_of(draft, Prices(passes, layer), drafter, depth, fitted)
    assert paths(drafted.tree) == expected
    assert drafted.drafted.depths.max() <= layers


@BOTH
@given(small_worlds, rising)
def test_where_layers_are_free_and_costs_convex_no_other_tree_of_the_world_has_a_higher_rate(
    draft, paths, fitted, world, passes
):
    """So what is not drafted from, as it was not worth verifying, leads to nothing that is."""
    drafter, depth = world
    counted = nearest_convex(passes)
    expected, _ = best_tree(
        whole_world(drafter, depth), lambda phi, nodes, _: phi / counted[nodes - 1], len(passes), depth, apart=1e-9
    )
    costs = Prices(passes if fitted else counted)
    assert paths(tree_of(draft, costs, drafter, depth, fitted).tree) == expected


@pytest.mark.parametrize("options", [{}, {"budget": 2}, {"budget": 9, "depth": 1}])
def test_with_fitted_costs_it_keeps_the_contract(options):
    check_tree_policy(lambda: CaDDTree(convex=True, **options), max_examples=10)


@BOTH
def test_a_tree_by_hand(draft, paths, fitted):
    """A node takes a tenth of a root, a layer too; the law is .7, .2 and .1 after every path.

    One layer: theta is 1 / 1.1, 1.7 / 1.2, 1.9 / 1.3, 2 / 1.4 = .909, 1.417, 1.462, 1.429, so two nodes.
    Two: 1.7 / 1.3, 2.19 / 1.4, 2.39 / 1.5, 2.53 / 1.6 = 1.308, 1.564, 1.593, 1.581, so .7, .49 and .2.
    Three: 2.19 / 1.5, 2.533 / 1.6, 2.733 / 1.7, 2.873 / 1.8 = 1.46, 1.583, 1.608, 1.596, so .343 as well.
    Four: 2.733 / 1.8, 2.973 / 1.9, 3.113 / 2 = 1.518, 1.565, 1.557: .240 as well, but less than 1.608, so no fifth.
    """
    drafter = TableDrafter([[0.7, 0.2, 0.1]])
    costs = Prices(tuple(1 + 0.1 * nodes for nodes in range(30)), layer=0.1)
    trees = [{(0,), (0, 0), (0, 1)}]
    trees += [{*trees[-1], (0, 0, 0)}]
    trees += [{*trees[-1], (0, 0, 0, 0)}]
    trees += [{*trees[-1], (0, 0, 0, 0, 0)}]
    for depth, tree in enumerate(trees, start=1):
        assert paths(tree_of(draft, costs, drafter, depth, fitted).tree) == tree
    drafted = tree_of(draft, costs, drafter, fitted=fitted)
    assert paths(drafted.tree) == trees[-1]
    assert drafted.drafted.depths.max() == 4


def test_fitted_costs_by_hand_in_two_layers(draft, paths):
    """Passes of 1, 1, 1.6, 1.6 and 1.6 seconds are fitted by 1, 1.18, 1.36, 1.54 and 1.72; a layer takes .1.

    One layer: theta is 1 / 1, then 1.6 / 1.28 and 1.9 / 1.46, 2 / 1.64 = 1.25, 1.301, 1.220, so two nodes.
    Two: .6, .36, .3, .18 are the likeliest: 1.6 / 1.38, 1.96 / 1.56, 2.26 / 1.74, 2.44 / 1.92 = 1.159, 1.256, 1.299,
    1.271, so three nodes; 1.299 is less than 1.301, so there is no third layer.

    As they are told, the passes make it other trees. One layer: 1.6 / 1.1, 1.9 / 1.7, 2 / 1.7 = 1.455, 1.118, 1.176.
    Two: 1.6 / 1.2, 1.96 / 1.8, 2.26 / 1.8, 2.44 / 1.8 = 1.333, 1.089, 1.256, 1.356.
    """
    drafter, costs = TableDrafter([[0.6, 0.3, 0.1]]), Prices((1.0, 1.0, 1.6, 1.6, 1.6), layer=0.1)
    assert nearest_convex(costs.passes) == pytest.approx((1.0, 1.18, 1.36, 1.54, 1.72))
    one, two = {(0,), (0, 0), (0, 1)}, {(0,), (0, 0), (0, 1), (0, 0, 0)}
    assert paths(tree_of(draft, costs, drafter, depth=1, fitted=True).tree) == one
    drafted = tree_of(draft, costs, drafter, fitted=True)
    assert paths(drafted.tree) == two
    assert drafted.drafted.depths.max() == 2
    assert paths(tree_of(draft, costs, drafter, depth=1).tree) == {(0,), (0, 0)}
    assert len(tree_of(draft, costs, drafter, depth=2).tree) == 5


def test_a_step_of_the_costs_that_pays_later_is_taken(draft):
    """Where costs are not convex, theta may fall and rise again: the highest counts."""
    drafter = TableDrafter([[0.3, 0.25, 0.2, 0.15, 0.1]])
    step = Prices((1.0, 1.0, 1.4, 1.4, 1.4, 1.4))  # theta is 1.3 with one node, 1.107 with two, 1.429 with five
    assert len(tree_of(draft, step, drafter, depth=1).tree) == 6
    steep = Prices((1.0, 1.0, 1.6, 1.6, 1.6, 1.6))  # 1.25 with five
    assert len(tree_of(draft, steep, drafter, depth=1).tree) == 2


def test_of_equal_rates_the_smallest_tree_is_taken(draft):
    drafter = TableDrafter([[0.5, 0.25, 0.25]])
    even = Prices((1.0, 1.0, 1.5 / 1.5 * 7 / 6))  # theta(1) = 1.5 = theta(2) = 1.75 / (7 / 6)
    assert 1.75 / even.passes[2] == pytest.approx(1.5)
    assert len(tree_of(draft, Prices((*even.passes[:2], even.passes[2] + 1e-12)), drafter, depth=1).tree) == 2
    assert len(tree_of(draft, Prices((*even.passes[:2], even.passes[2] - 1e-6)), drafter, depth=1).tree) == 3
