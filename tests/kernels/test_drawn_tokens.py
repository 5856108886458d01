"""Tokens that C draws from rows of scores: those of the law, number by number."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices
from talon_core.runtime.draws import take_tokens
from talon_core.runtime.host_draws import MOST_LEFT, Warp
from talon_core.sampling import Temperature
from talon_core.target import NO_TOKEN, NodeDraws
from talon_kernels.drawn_tokens import drawn_tokens
from talon_kernels.native import switch_off

TOKENS = (1, 2, 7, 8, 63, 255, 256, 257, 1000, 5000)
WARPS = (Warp(), Warp(0.7), Warp(2.5), Warp(1.0, 5), Warp(0.3, 50), Warp(1.7, 20, True))
INF, NAN = float("inf"), float("nan")


def scores(*shape, seed=0, scale=3.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def numbers(count, seed=0):
    return np.random.default_rng(seed).random(count)


def laws(x, warp):
    """The laws of rows, in float64."""
    divided = x / warp.temperature
    if warp.best:
        counted = x if warp.best_first else divided
        least = counted.topk(min(warp.best, x.shape[1])).values[:, -1:]
        divided = divided.masked_fill(counted < least, -INF)
    return torch.softmax(divided.double(), -1).numpy()


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("warp", WARPS)
def test_they_are_the_references(library, tokens, warp):
    x, drawn = scores(40, tokens, seed=tokens), numbers(40, tokens)
    found = drawn_tokens(x, [warp] * 40, drawn, backend="native")
    assert torch.equal(found, drawn_tokens(x, [warp] * 40, drawn, backend="reference"))


@pytest.mark.parametrize("warp", WARPS)
def test_each_token_comes_out_for_its_share_of_all_numbers(library, warp):
    """Within rounding: a little inside of both ends of each token's share it comes out, and no other."""
    x = scores(1, 600, seed=5)
    law = laws(x, warp)[0]
    upto = np.cumsum(law)
    likely = np.flatnonzero(law > 1e-9)
    inside = np.concatenate([upto[likely] - law[likely] * (1 - 1e-4), upto[likely] - law[likely] * 1e-4])
    found = drawn_tokens(x.expand(len(inside), -1), [warp] * len(inside), inside.clip(0, 1 - 2**-53), backend="native")
    assert found.tolist() == [*likely, *likely]


@pytest.mark.parametrize("warp", WARPS)
def test_they_are_what_choices_and_devices_draw(library, warp):
    x = scores(30, 3000, seed=9)
    seeds = range(30)
    expected = [SeededChoices(seed).pick(law) for seed, law in zip(seeds, laws(x, warp), strict=True)]
    told = np.array([SeededChoices(seed).ahead(1)[0] for seed in seeds])
    assert drawn_tokens(x, [warp] * 30, told, backend="native").tolist() == expected
    if not warp.best:
        draws = NodeDraws((Temperature(warp.temperature),), frozenset(), told)
        assert take_tokens(x, draws, torch.from_numpy(told)).tolist() == expected


def test_the_ends_of_all_numbers_are_tokens_of_the_law(library):
    x = scores(4, 700, seed=3)
    x[:, :3], x[:, -300:] = -INF, -INF
    for warp in WARPS:
        first = drawn_tokens(x, [warp] * 4, np.zeros(4), backend="native")
        last = drawn_tokens(x, [warp] * 4, np.full(4, 1 - 2**-53), backend="native")
        for row, law in enumerate(laws(x, warp)):
            assert first[row] == np.flatnonzero(law)[0]
            assert law[last[row]] > 0
            assert last[row] >= np.flatnonzero(law > 1e-12)[-1]


def test_what_is_as_good_as_the_last_one_is_left_as_well(library):
    x = torch.tensor([[0.0, 2.0, 1.0, 1.0, -1.0, 1.0]])
    for best_first in (False, True):
        warp = Warp(0.5, 2, best_first)
        drawn = np.linspace(0, 1, 200, endpoint=False)
        found = drawn_tokens(x.expand(200, -1), [warp] * 200, drawn, backend="native")
        assert {*found.tolist()} == {1, 2, 3, 5}


@pytest.mark.parametrize("tokens", [3, 300])
@pytest.mark.parametrize("best", [1, 2, MOST_LEFT])
def test_fewer_scores_than_are_left_are_all_left(library, tokens, best):
    x, drawn = scores(9, tokens).round(), numbers(9)
    warps = [Warp(0.9, best)] * 9
    found = drawn_tokens(x, warps, drawn, backend="native")
    assert torch.equal(found, drawn_tokens(x, warps, drawn, backend="reference"))


@pytest.mark.parametrize("wrong", [NAN, INF])
@pytest.mark.parametrize("place", [0, 100, 299])
def test_where_there_is_no_law_there_is_no_token(library, wrong, place):
    x = scores(3, 300)
    x[1, place] = wrong
    for backend in ("native", "reference"):
        found = drawn_tokens(x, [Warp()] * 3, numbers(3), backend=backend)
        assert [token == NO_TOKEN for token in found.tolist()] == [False, True, False]
    for warp in (Warp(1.0, 2), Warp(0.7, 2, True)):
        for backend in ("native", "reference"):
            assert drawn_tokens(x[1:2], [warp], numbers(1), backend=backend).tolist() == [NO_TOKEN]
    x[1] = -INF
    assert drawn_tokens(x, [Warp()] * 3, numbers(3), backend="native")[1] == NO_TOKEN
    tiny = drawn_tokens(scores(1, 9).abs() + 1, [Warp(1e-40)], numbers(1), backend="native")  # all of it is infinite
    assert tiny.tolist() == [NO_TOKEN]


@settings(deadline=None)
@given(
    rows=st.integers(1, 12),
    tokens=st.integers(1, 2000),
    threads=st.integers(1, 3),
    warp=st.sampled_from(WARPS),
    scale=st.sampled_from([0.0, 0.1, 5.0, 300.0]),
)
def test_a_row_has_the_same_token_in_any_company(library, rows, tokens, threads, warp, scale):
    before = torch.get_num_threads()
    x, drawn = scores(rows, tokens, seed=rows, scale=scale), numbers(rows, tokens)
    warps = [warp, Warp()] * rows
    torch.set_num_threads(1)
    try:
        alone = [drawn_tokens(x[i : i + 1], [warps[i]], drawn[i : i + 1], backend="native").item() for i in range(rows)]
        torch.set_num_threads(threads)
        assert drawn_tokens(x, warps[:rows], drawn, backend="native").tolist() == alone
    finally:
        torch.set_num_threads(before)
    assert drawn_tokens(x, warps[:rows], drawn, backend="reference").tolist() == alone


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.zeros(3), [Warp()] * 3, numbers(3)), r"scores are \(rows, tokens\)"),
        ((torch.zeros(3, 4).double(), [Warp()] * 3, numbers(3)), "takes float32 on the CPU, got torch.float64"),
        ((torch.zeros(3, 4), [Warp()] * 2, numbers(3)), "got 3 rows, 2 warps and 3 numbers"),
        ((torch.zeros(1, 4), [Warp()], np.array([1.0])), r"numbers are in \[0, 1\); got 1.0"),
        ((torch.zeros(1, 4), [Warp()], np.array([NAN])), r"numbers are in \[0, 1\); got nan"),
        ((torch.zeros(1, 4), [Warp()], numbers(1), "magic"), "no backend 'magic' of drawn_tokens"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    scored, warps, drawn, *backend = given
    with pytest.raises(ValueError, match=message):
        drawn_tokens(scored, warps, drawn, backend=backend[0] if backend else None)


def test_without_kernels_the_reference_is_taken():
    x, drawn = scores(3, 40), numbers(3)
    with switch_off():
        assert torch.equal(
            drawn_tokens(x, [Warp()] * 3, drawn), drawn_tokens(x, [Warp()] * 3, drawn, backend="reference")
        )
        with pytest.raises(ValueError, match="backend 'native' cannot be used here"):
            drawn_tokens(x, [Warp()] * 3, drawn, backend="native")
