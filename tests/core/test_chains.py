"""What a policy says of trees to come, and what is refused of it."""

import math
from fractions import Fraction
from sys import maxsize

import numpy as np
import pytest

from talon_core.chains import Account, Chains


def test_chains_are_as_deep_as_they_have_levels():
    found = Chains(maxsize, 1, [-1, -2.5], (-math.inf, math.inf))
    assert (found.depth, found.joins, found.goes_on) == (2, (-1.0, -2.5), (-math.inf, math.inf))


@pytest.mark.parametrize("field", ["rounds", "width"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "many", None])
def test_numbers_that_are_none_are_refused(field, value):
    with pytest.raises(ValueError, match=rf"^{field} of chains is .*; it must be a whole number of at least 1$"):
        Chains(**{"rounds": 1, "width": 1, "joins": (0.0,), "goes_on": (0.0,), field: value})


@pytest.mark.parametrize(("joins", "goes_on"), [((), ()), ((0.0,), ()), ((0.0,), (0.0, 0.0))])
def test_there_is_a_level_of_both_for_each_depth(joins, goes_on):
    counts = rf"^chains have {len(joins)} levels .* and {len(goes_on)} with which .* at least one$"
    with pytest.raises(ValueError, match=counts):
        Chains(1, 1, joins, goes_on)


@pytest.mark.parametrize(("joins", "goes_on"), [((math.nan,), (0.0,)), ((0.0, 0.0), (0.0, math.nan))])
def test_no_level_is_nan(joins, goes_on):
    with pytest.raises(ValueError, match="none of them may be NaN"):
        Chains(1, 1, joins, goes_on)


@pytest.mark.parametrize("levels", [None, 3, "high", (None,), ("high",)])
@pytest.mark.parametrize("field", ["joins", "goes_on"])
def test_levels_that_are_no_numbers_are_refused_in_words(field, levels):
    with pytest.raises(ValueError, match=rf"^{field} of chains is .*; it must be numbers, one for each depth$"):
        Chains(**{"rounds": 1, "width": 1, "joins": (0.0,), "goes_on": (0.0,), field: levels})


def test_an_account_takes_what_a_round_takes_and_brings_what_its_tokens_bring():
    account = Account(1.0, 0.5, 0.1, [1.0, 1.2, 1.5], 1.1)
    assert account.of(2, 1, 2) == 1.1 * 2 - (0.1 * 2 + 1.2)
    assert account.of(1, 0, 1) == 1.1 * 1 - (0.1 * 1 + 1.0)
    assert Chains(1, 1, (0.0, 0.0), (0.0, 0.0), account).account == account


@pytest.mark.parametrize("field", ["credit", "least", "layer", "token"])
@pytest.mark.parametrize("value", [math.nan, None, "much", True])
def test_what_is_no_number_is_refused_of_an_account(field, value):
    with pytest.raises(ValueError, match=rf"^{field} of an account is .*; it must be a number$"):
        Account(**{"credit": 1.0, "least": 0.0, "layer": 0.1, "nodes": (1.0, 1.1), "token": 1.0, field: value})


@pytest.mark.parametrize("nodes", [None, 3, "high", (None,)])
def test_prices_of_nodes_that_are_no_numbers_are_refused(nodes):
    with pytest.raises(
        ValueError, match=r"^nodes of an account is .*; it must be numbers, one for each size of a tree$"
    ):
        Account(1.0, 0.0, 0.1, nodes, 1.0)


def test_no_price_of_nodes_is_nan():
    with pytest.raises(ValueError, match="none of them may be NaN"):
        Account(1.0, 0.0, 0.1, (1.0, math.nan), 1.0)


@pytest.mark.parametrize("nodes", [(), (1.0,), (1.0, 1.1, 1.2)])
def test_an_account_has_a_price_for_each_size_of_a_chain(nodes):
    said = (
        rf"^the account of chains of up to 1 drafted nodes says what {len(nodes)} trees take; .* 0 to 1 drafted nodes$"
    )
    with pytest.raises(ValueError, match=said):
        Chains(1, 1, (0.0,), (0.0,), Account(1.0, 0.0, 0.1, nodes, 1.0))


def test_only_an_account_is_one():
    with pytest.raises(TypeError, match="account"):
        Chains(1, 1, (0.0,), (0.0,), 3.0)


@pytest.mark.parametrize("drawn", [0, -1.0, math.inf, math.nan, "warm", True])
def test_a_temperature_that_is_none_is_refused(drawn):
    with pytest.raises(ValueError, match=r"^drawn of chains is .*; it must be a temperature, more than 0, or None$"):
        Chains(1, 1, (0.0,), (0.0,), drawn=drawn)


def test_a_temperature_is_a_float():
    assert Chains(1, 1, (0.0,), (0.0,), drawn=1).drawn == 1.0
    assert Chains(1, 1, (0.0,), (0.0,), drawn=np.int64(1)).drawn == 1.0
    assert Chains(1, 1, (0.0,), (0.0,), drawn=Fraction(4, 5)).drawn == 0.8
    assert Chains(1, 1, (0.0,), (0.0,)).drawn is None
