"""What a policy says of trees to come, and what is refused of it."""

import math
from sys import maxsize

import pytest

from talon_core.chains import Chains


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
