"""A fit rises along every axis, goes through what rises already, and tells how well its points foretell each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.profiles.grid import Fit, error

SECONDS = st.floats(0.001, 10.0)


@st.composite
def points(draw: st.DrawFn) -> dict[tuple[int, ...], float]:
    """Of three axes; some places of the grid are empty."""
    axes = [draw(st.lists(st.integers(1, 300), min_size=1, max_size=4, unique=True)) for _ in range(3)]
    every = [(a, b, c) for a in axes[0] for b in axes[1] for c in axes[2]]
    kept = draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    return {sizes: draw(SECONDS) for sizes in kept}


@given(points(), st.tuples(*[st.integers(1, 400)] * 3), st.integers(0, 100))
def test_more_of_the_first_size_never_costs_less(
    given_points: dict[tuple[int, ...], float], at: tuple[int, ...], more: int
) -> None:
    fit = Fit(given_points)
    assert 0.0 <= fit.at(*at) <= fit.at(at[0] + more, *at[1:])


@given(points())
def test_on_the_grid_seconds_rise_along_every_axis(given_points: dict[tuple[int, ...], float]) -> None:
    seconds = Fit(given_points).seconds
    assert all((np.diff(seconds, axis=axis) >= 0).all() for axis in range(3))


@given(points(), st.lists(st.integers(1, 400), min_size=1), st.tuples(*[st.integers(1, 400)] * 2))
def test_several_sizes_have_to_the_bit_what_each_has(
    given_points: dict[tuple[int, ...], float], first: list[int], others: tuple[int, ...]
) -> None:
    fit = Fit(given_points)
    assert fit.along(np.array(first), *others).tolist() == [fit.at(size, *others) for size in first]
    seconds = np.array([others[0], *first])
    assert fit.along_each(np.array(first), seconds, *others[1:]).tolist() == [
        fit.along(np.array(first), second, *others[1:]).tolist() for second in seconds.tolist()
    ]
    assert fit.along_each(np.array(first), seconds[:0], *others[1:]).shape == (0, len(first))


def linear(nodes: int, context: int, batch: int) -> float:
    return 1e-3 * (5 + batch * nodes * 0.5 + batch * context * 0.01)


def test_what_rises_already_is_met_and_what_lies_between_and_beyond_is_on_the_same_lines() -> None:
    grid = {(n, c, b): linear(n, c, b) for n in (1, 4, 16) for c in (64, 256) for b in (1, 4)}
    fit = Fit(grid)
    for sizes in [*grid, (9, 100, 2), (64, 256, 4), (16, 1024, 1), (1, 8, 1)]:
        assert fit.at(*sizes) == pytest.approx(linear(*sizes))


def test_what_falls_is_put_together_at_its_mean() -> None:
    fit = Fit({(1,): 1.0, (2,): 3.0, (4,): 2.0, (8,): 6.0})
    assert fit.seconds.tolist() == [1.0, 2.5, 2.5, 6.0]


def test_a_single_point_is_all_there_is() -> None:
    assert Fit({(8, 64, 1): 0.5}).at(100, 3, 9) == 0.5


def test_the_error_is_that_of_points_that_were_left_out() -> None:
    found = error({(1,): 1.0, (2,): 3.0, (3,): 3.0, (5,): 5.0})  # without (2,) it would be 2, without (3,) 3 + 2 / 3
    assert found is not None
    assert found.largest == pytest.approx(1 / 3)
    assert found.median == pytest.approx((1 / 3 + 2 / 9) / 2)
    assert error({(1,): 1.0, (2,): 3.0}) is None


@given(
    st.dictionaries(st.tuples(*[st.integers(1, 99)] * 2), SECONDS, min_size=1, max_size=9),
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
)
def test_so_they_have_by_two_sizes_as_layers_of_drafters_do(
    given_points: dict[tuple[int, ...], float], first: list[int], second: list[int]
) -> None:
    fit = Fit(given_points)
    each = fit.along_each(np.array(first, dtype=np.float64), np.array(second, dtype=np.float64)).tolist()
    assert each == [[fit.at(one, other) for one in first] for other in second]
    assert each == [fit.along(np.array(first, dtype=np.float64), other).tolist() for other in second]


@pytest.mark.parametrize("sizes", [(5,), (5, 100), (5, 100, 1, 3)])
def test_a_fit_is_asked_with_as_many_sizes_as_it_has_axes(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"a fit of 3 axes is asked with {len(sizes)} sizes"):
        Fit({(1, 64, 1): 0.01, (8, 512, 2): 0.02}).at(*sizes)
