"""The nearest curve that rises and bends upwards: no such curve is nearer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.costs import Costs
from talon_core.policy import SequenceInfo
from talon_core.testing import TableDrafter
from talon_strategies import CaDDTree
from talon_strategies.convex import convex_fit

numbers = st.lists(st.floats(0, 9), min_size=2, max_size=12)


def slopes(sizes, values):
    return np.diff(values) / np.diff(sizes)


@given(numbers, st.data())
def test_no_other_such_curve_is_nearer(values, data):
    steps = data.draw(st.lists(st.integers(1, 5), min_size=len(values) - 1, max_size=len(values) - 1))
    sizes, values = 1 + np.cumsum([0, *steps]), np.array(values)
    found = convex_fit(sizes, values)
    rises = slopes(sizes, found)
    assert rises.min() >= -1e-9
    assert np.diff(rises).min(initial=0.0) >= -1e-9
    distance = np.square(found - values).sum()
    for _ in range(5):
        level = data.draw(st.floats(-9, 9))
        bends = data.draw(st.lists(st.floats(0, 3), min_size=len(steps), max_size=len(steps)))
        other = level + np.concatenate([[0.0], np.cumsum(np.cumsum(bends) * steps)])
        for share in (1.0, 0.1, 0.001):  # such curves are a convex set, so the nearest one is so from near by, too
            near = found + share * (other - found)
            assert np.square(near - values).sum() >= distance - 1e-9


@given(numbers)
def test_a_curve_that_is_one_stays_as_it_is(bends):
    sizes, values = np.arange(1, 2 + len(bends)), np.concatenate([[2.0], 2.0 + np.cumsum(np.cumsum(bends))])
    np.testing.assert_allclose(convex_fit(sizes, values), values, rtol=1e-9, atol=1e-9)


def test_by_hand():
    np.testing.assert_allclose(convex_fit(np.array([1, 2, 3]), np.array([1.0, 3.0, 2.0])), [1.5, 2.0, 2.5])
    np.testing.assert_allclose(convex_fit(np.array([1, 2, 3]), np.array([3.0, 2.0, 1.0])), [2.0, 2.0, 2.0])
    np.testing.assert_allclose(convex_fit(np.array([1, 2, 4]), np.array([0.0, 0.0, 6.0])), [0.0, 0.0, 6.0], atol=1e-12)


def test_where_costs_are_flat_between_two_rises_the_paper_s_rule_stops_before_the_first(draft):
    drafter = TableDrafter([[0.4, 0.3, 0.2, 0.1]] * 4)
    passes = (1.0, 1.0, 1.6, 1.6, 1.6)

    class Prices(Costs):
        """Made-up prices."""

        def verify(self, nodes, context, batch=1):
            return passes[nodes - 1]

        def draft(self, rows, width):
            return 0.0

    def nodes(**options):
        policy = CaDDTree(budget=5, depth=1, **options)
        return len(draft(policy.begin(SequenceInfo(30, 64, 0.0, Prices())), drafter).tree)

    fitted, phi = convex_fit(np.arange(1, 6), np.array(passes)), np.array([0.0, 0.4, 0.7, 0.9, 1.0])
    theta = (1 + phi) / fitted
    assert nodes(convex=True) == 1 + next((place for place in range(4) if theta[place + 1] <= theta[place]), 4)
    assert nodes() == 1 + int(((1 + phi) / passes).argmax())
    assert nodes(convex=True) != nodes()
    with pytest.raises(ValueError, match="convex"):
        CaDDTree(convex="yes")
