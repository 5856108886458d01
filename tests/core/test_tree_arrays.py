import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.tree_arrays import (
    SORTED,
    among_highest,
    begins_of,
    by_number,
    highest,
    highest_of_each,
    lowest_of_rows,
    places_of,
)

FEW_SCORES = st.sampled_from([-math.inf, -2.0, -1.5, 0.0, math.inf, math.nan])


@pytest.mark.parametrize("size", [0, 1, 7, SORTED, SORTED + 1, 3 * SORTED])
@given(data=st.data())
def test_the_highest_are_the_first_of_a_stable_sort(size, data):
    some = data.draw(st.lists(FEW_SCORES, min_size=7, max_size=7))
    values = np.array(some * size)[:size]
    count = data.draw(st.integers(-1, size + 1))
    numbers = [place for place in range(size) if not math.isnan(values[place])]
    others = [place for place in range(size) if math.isnan(values[place])]
    ranked = sorted(numbers, key=lambda place: -values[place]) + others
    assert highest(values, count).tolist() == ranked[: max(count, 0)]


@pytest.mark.parametrize("size", [1, 7, 63, 100])
@given(data=st.data())
def test_the_highest_of_each_group_are_those_of_the_group_alone(size, data):
    held = np.array(data.draw(st.lists(st.integers(0, size), min_size=1, max_size=5)))
    some = data.draw(st.lists(st.sampled_from([-2.0, -1.5, 0.0, -math.pi]) | st.floats(-3, 0), min_size=7, max_size=7))
    values = np.resize(some, held.sum())
    most = data.draw(st.sampled_from([1 + size // 5, size + 1]))
    counts = np.array(data.draw(st.lists(st.integers(-1, most), min_size=len(held), max_size=len(held))))
    firsts = np.cumsum(held) - held
    alone = [
        first + highest(values[first : first + own], count)
        for first, own, count in zip(firsts, held, counts, strict=True)
    ]
    assert highest_of_each(values, held, counts).tolist() == np.concatenate(alone).tolist()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=6))
def test_places_of_ranges_stand_behind_each_other(ranges):
    firsts, counts = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    expected = [first + place for first, count in ranges for place in range(count)]
    assert places_of(firsts, counts).tolist() == expected


@pytest.mark.parametrize("count", [7, 100_000])
def test_numbers_are_put_in_order_and_equal_ones_stay_in_theirs(count):
    numbers = np.array([5, 0, 6, 5, 0, 3])
    assert by_number(numbers, count).tolist() == [1, 4, 5, 0, 3, 2]


@given(data=st.data())
def test_what_is_among_the_highest_of_each_group_is_found_without_an_order(data):
    held = np.array(data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5)))
    some = data.draw(st.lists(st.sampled_from([-2.0, -1.5, 0.0]) | st.floats(-3, 0), min_size=7, max_size=7))
    values, count = np.resize(some, held.sum()), data.draw(st.integers(1, 14))
    expected = highest_of_each(values, held, np.full(len(held), count))
    assert np.flatnonzero(among_highest(values, held, count)).tolist() == sorted(expected.tolist())


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("width", [2, 5, 40])
def test_the_lowest_of_each_row_are_those_of_a_stable_sort(count, width):
    numbers = np.random.default_rng(width).integers(0, 9, (6, width)).astype(np.float64)
    numbers[1:, width // 2 :] = np.inf
    numbers[4] = np.inf
    places, values = lowest_of_rows(numbers, count)
    for row, own, found in zip(numbers, places, values, strict=True):
        real = min(count, int((row < np.inf).sum()))
        assert own[:real].tolist() == row.argsort(kind="stable")[:real].tolist()
        assert found[:real].tolist() == row[own[:real]].tolist()
        assert (found[real:] == np.inf).all()


@pytest.mark.parametrize("numbers", [[], [0], [4, 4], [0, 0, 3, 3, 3, 5]])
def test_runs_begin_where_a_number_is_another_one_than_before(numbers):
    begins = begins_of(np.array(numbers, dtype=np.int64)).tolist()
    assert begins == [place for place, one in enumerate(numbers) if not place or one != numbers[place - 1]]
