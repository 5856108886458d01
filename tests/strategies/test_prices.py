"""What a round takes, as far as it is known."""

import numpy as np
import pytest

from talon_core.costs import MeasuredCosts
from talon_strategies.prices import LEAST, assumed_passes, layer_price, rounds_price, verify_price


def test_while_nothing_is_known_prices_are_in_passes_over_the_root():
    costs = MeasuredCosts()
    assert verify_price(costs, 1, 100) == 1.0
    assert verify_price(costs, 9, 100) == pytest.approx(1.4)
    assert verify_price(costs, 9, 100, node=0.5) == 5.0
    assert layer_price(costs, 3, 10, 100) == 0.1
    assert assumed_passes(np.array([1.0, 2.0, 5.0]), 0.25).tolist() == [1.0, 1.25, 2.0]
    costs.drafted(3, 10, 0.004)  # of no use without the target's
    assert layer_price(costs, 3, 10, 100) == 0.1


def test_what_is_known_is_in_seconds_and_layers_of_unknown_price_are_free():
    costs = MeasuredCosts()
    for _ in range(9):
        costs.verified(1, 100, 1, 0.02)
        costs.verified(9, 100, 1, 0.03)
    assert [verify_price(costs, nodes, 100) for nodes in (1, 5, 9)] == pytest.approx([0.02, 0.026, 0.03], rel=0.05)
    assert verify_price(costs, 9, 100) == costs.verify(9, 100)
    assert layer_price(costs, 3, 10, 100) == 0.0
    costs.drafted(3, 10, 0.004)
    assert layer_price(costs, 3, 10, 100) == costs.draft(3, 10) == pytest.approx(0.004, rel=0.15)


def test_a_pass_takes_some_time():
    costs = MeasuredCosts()
    costs.verified(1, 100, 1, 0.0)
    assert verify_price(costs, 1, 100) == LEAST


def test_several_rounds_cost_what_their_passes_and_layers_do():
    passes, layers = {5: 2, 1: 3}, {(1, 10): 4, (3, 10): 1}
    costs = MeasuredCosts()
    assert rounds_price(costs, passes, layers, 100) == pytest.approx(2 * 1.2 + 3 + 5 * 0.1)
    for _ in range(9):
        costs.verified(nodes=1, context=100, batch=1, seconds=0.02)
        costs.verified(nodes=5, context=100, batch=1, seconds=0.03)
        costs.drafted(rows=3, width=10, seconds=0.004)
    verifying = 2 * verify_price(costs, 5, 100) + 3 * verify_price(costs, 1, 100)
    drafting = 4 * layer_price(costs, 1, 10, 100) + layer_price(costs, 3, 10, 100)
    assert rounds_price(costs, passes, layers, 100) == pytest.approx(verifying + drafting)
    assert rounds_price(costs, {}, {}, 100) == 0.0
