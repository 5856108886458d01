"""Log-odds and back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.basics.logistic import log_odds, log_odds_of, log_sigmoid, sigmoid


def test_by_hand():
    assert log_odds(0.75, 1e-4) == pytest.approx(math.log(3))
    assert sigmoid(-math.log(3)) == pytest.approx(0.25)
    assert log_odds_of(np.log([0.5, 0.9]), 10.0) == pytest.approx([0.0, math.log(9)])
    assert np.exp(log_sigmoid(np.array([0.0, math.log(9)]))) == pytest.approx([0.5, 0.9])


def test_what_is_as_good_as_certain_is_cut():
    assert [log_odds(0.0, 0.01), -log_odds(1.0, 0.01)] == pytest.approx([math.log(1 / 99)] * 2)
    assert log_odds_of(np.array([[0.0, -np.inf, -1e300]]), 10.0).tolist() == [[10.0, -10.0, -10.0]]


@given(st.floats(1e-4, 1 - 1e-4))
def test_both_ways_are_inverse_and_both_kinds_agree(prob):
    odds = log_odds(prob, 1e-4)
    assert sigmoid(odds) == pytest.approx(prob)
    assert float(log_odds_of(math.log(prob), 10.0)) == pytest.approx(odds, abs=1e-9)
    assert math.exp(log_sigmoid(np.array(odds))) == pytest.approx(prob)
