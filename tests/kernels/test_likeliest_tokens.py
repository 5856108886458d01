"""The most likely tokens with a screen: those of the whole product, whatever the numbers are."""

import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.runtime.blocks import KINDS, Blocks
from talon_kernels.likeliest_tokens import Screen, likeliest_tokens
from talon_kernels.native import switch_off
from talon_kernels.skinny_linear import skinny_linear
from talon_tests.tiny_gguf import random_blocks

INF, NAN = float("inf"), float("nan")


def numbers(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def check(x, weight):
    """What is found is where the whole product is largest, bit by bit of it; returns it."""
    scores = skinny_linear(x, weight, backend="native")
    found = likeliest_tokens(x, weight, backend="native")
    assert torch.equal(found, scores.argmax(-1))
    return found


@settings(deadline=None)
@given(
    rows=st.integers(0, 20),
    inputs=st.integers(1, 150),
    outputs=st.integers(1, 300),
    spread=st.sampled_from([0.0, 1.0, 4.0]),
    narrow=st.booleans(),
    seed=st.integers(0, 99),
)
def test_they_are_those_of_the_product(library, rows, inputs, outputs, spread, narrow, seed):
    """With `spread`, a few of the inputs are far larger than the others, as states of a network are."""
    x = numbers(rows, inputs, seed=seed) * torch.exp(spread * numbers(inputs, seed=seed + 1))
    weight = numbers(outputs, inputs, seed=seed + 2)
    check(x, weight.bfloat16() if narrow else weight)


@settings(deadline=None)
@given(rows=st.integers(1, 10), distinct=st.integers(1, 150), outputs=st.integers(1, 200), seed=st.integers(0, 99))
def test_of_equals_the_first_is_taken(library, rows, distinct, outputs, seed):
    """Whether all are computed, as where many are equal, or a few are left."""
    generator = torch.Generator().manual_seed(seed)
    weight = numbers(distinct, 40, seed=seed)[torch.randint(distinct, (outputs,), generator=generator)]
    check(numbers(rows, 40, seed=seed + 1), weight)


@settings(deadline=None)
@given(inputs=st.integers(1, 100), outputs=st.integers(2, 200), ulps=st.integers(-2, 2), seed=st.integers(0, 99))
def test_neighbours_by_a_last_digit_are_told_apart_as_the_product_does(library, inputs, outputs, ulps, seed):
    """All rows of the weight are one row but for the last digits of one number of each."""
    weight = numbers(1, inputs, seed=seed).repeat(outputs, 1)
    places = torch.randint(inputs, (outputs,), generator=torch.Generator().manual_seed(seed))
    digits = weight.view(torch.int32)
    digits[torch.arange(outputs), places] += ulps * (torch.arange(outputs) % 3).int()
    check(numbers(4, inputs, seed=seed + 1), weight)


@pytest.mark.parametrize("seed", range(10))
def test_rounding_of_the_products_sums_is_in_the_bound(library, seed):
    """Codes lack nothing here, of neither: rows differ in the seventh digit of the product, as rounding does."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(100, 128, (4000,), generator=generator).float()
    row[0] = 127.0
    weight = torch.stack([row[torch.randperm(4000, generator=generator)] for _ in range(500)])
    most = (2**31 - 1) // (127 * 4000)  # what the codes of the input may be
    x = most - (torch.rand(8, 4000, generator=generator) < torch.rand(8, 1, generator=generator)).float()
    x[:, 0] = most
    check(x, weight)


def test_what_the_codes_of_the_input_lack_is_in_the_bound(library):
    """Those of the weight lack nothing. A large number makes the steps of the input so large that the others are lost,
    which are what one row has more than all others; by the codes it is another row that is the largest."""
    weight = 0.998 * torch.randint(-1, 2, (3000, 300), generator=torch.Generator().manual_seed(0)).float() * 126
    weight[:, 7] = 0.998 * 127
    weight[2000] = 127 * torch.eye(300)[7]
    best = weight[1000] = torch.where(weight[1000] == 0, 0.998 * 126, weight[1000])
    x = 0.49 * 1e5 / 32767 * best.sign()
    x[7] = 1e5
    assert check(x[None], weight).tolist() == [1000]


@pytest.mark.parametrize("inputs", [516, 517, 600, 5000])
def test_sums_of_many_large_numbers_have_room(library, inputs):
    weight = (1 + numbers(300, 1, seed=inputs).abs()).repeat(1, inputs)
    found = check(torch.ones(3, inputs), weight)
    assert found.tolist() == [int(weight[:, 0].argmax())] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_weights_may_be_in_blocks(library, kind):
    blocks = torch.from_numpy(random_blocks(kind, 300, 512, seed=1))
    check(numbers(11, 512), Blocks(blocks, int(GGMLQuantizationType[kind]), 512))


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-30, 1e-20, 3e-20, 5e-20, 1e-19, 1e-18, 1e18, 1e30, 3e37])
@pytest.mark.parametrize("of", ["x", "weight", "both"])
def test_numbers_may_be_of_any_size(library, scale, of):
    """Also so small that products are lost, and so large that they are infinite, or no numbers."""
    x = numbers(9, 70, scale=scale if of != "weight" else 1.0)
    check(x, numbers(200, 70, seed=1, scale=scale if of != "x" else 1.0))


@pytest.mark.parametrize("outputs", [64, 67])
def test_numbers_may_be_of_opposed_sizes(library, outputs):
    """Products are finite, and norms are larger than any float, or what codes lack is smaller than any."""
    small = torch.zeros(outputs, 70)
    small[5] = -1e-4
    check(torch.full((2, 70), 3e38), small)
    large = numbers(outputs, 70, scale=0.5e37)
    large[9] = 3e38
    check(torch.zeros(2, 70), large)
    one = torch.zeros(2, 70)
    one[1, 3] = 32767 * 2.0**-30
    check(one, large)
    least = 2.0**-149
    check(torch.tensor([[1e38, 1.0016e38]]), torch.tensor([[least, least], [127 * least, -125 * least]]))


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 31, 69])
def test_a_row_that_is_not_finite_is_chosen_from_as_by_the_product(library, threads, odd, place):
    x, weight = numbers(9, 70), numbers(200, 70, seed=1)
    x[3, place] = x[8, place] = odd
    weight[150:, place] = 0.0  # of an infinite number that is none, and larger than any
    for count in (1, 2, 3):
        threads(count)
        check(x, weight)


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_a_weight_that_is_not_finite_has_no_screen(library, odd):
    weight = numbers(200, 70, seed=1)
    weight[137, 69] = odd
    assert Screen.of(library, weight) is None
    check(numbers(3, 70), weight)


def test_where_the_screen_leaves_too_many_all_are_computed(library):
    """Of rows that are nearly equal no one can be left out, and the largest is anywhere."""
    weight = 1 + 1e-6 * numbers(5000, 64, seed=1)
    found = check(numbers(12, 64).abs(), weight)
    assert len(found.unique()) > 1


def test_threads_do_not_change_what_is_found(library, threads):
    x, weight = numbers(13, 100), numbers(2000, 100, seed=1)
    found = []
    for count in (1, 2, 3, 7):
        threads(count)
        found.append(check(x, weight))
    assert all(torch.equal(one, found[0]) for one in found)


def test_more_threads_than_columns_have_nothing_to_do(library, threads):
    threads(7)
    check(numbers(5, 33), numbers(30, 33, seed=1))


def test_bounds_of_a_screen_hold_and_are_close(library):
    """What codes lack of a row is within its bound, which is a thousandth and rounding above it at most."""
    weight = numbers(100, 77, seed=1)
    screen = Screen.of(library, weight)
    scale, lacks, norm = screen.columns.double().T
    near = screen.codes[:, :77].double() * scale[:, None]
    lacking = (weight.double() - near).norm(dim=1)
    assert (lacks >= lacking).all()
    assert (lacks <= 1.002 * lacking + 1e-4 * weight.norm(dim=1)).all()
    assert (norm >= near.norm(dim=1)).all()
    assert screen.limits[0].item() == pytest.approx(weight.double().norm(dim=1).max().item(), rel=1e-12)
    assert screen.limits[1] == lacks.max()
    assert not screen.codes[:, 77:].any()
    assert screen.codes.abs().amax(1).tolist() == [127] * 100


def test_what_the_screen_says_is_within_its_bound_and_most_of_the_product_is_not_computed(library):
    x, weight = numbers(4, 256), numbers(3000, 256, seed=1)
    screen, found = Screen.of(library, weight), torch.empty(4, dtype=torch.int64)
    said = torch.empty((4, 3000))
    given = x, weight, screen.codes, screen.columns, screen.limits, said, found
    library.likeliest(*[one.data_ptr() for one in given], 4, 3000, 256, 0, 1)
    whole = skinny_linear(x, weight, backend="native")
    lacks, norm = screen.columns[:, 1], screen.columns[:, 2]
    coarse = x.abs().amax(1, keepdim=True) / 32767 * 16  # half a step of x for each of 256 numbers, and as much again
    assert ((said - whole).abs() <= 1.01 * x.norm(dim=1, keepdim=True) * lacks + coarse * norm).all()
    computed = said == whole
    assert 4 <= computed.sum() < 0.02 * whole.numel()
    assert computed.gather(1, found[:, None]).all()
    assert torch.equal(found, whole.argmax(-1))


def test_without_a_compiler_plain_pytorch_answers():
    x, weight = numbers(7, 100), numbers(63, 100, seed=1)
    with switch_off("no compiler today"):
        assert torch.equal(likeliest_tokens(x, weight), (x @ weight.T).argmax(-1))
        with pytest.raises(ValueError, match="no compiler today"):
            likeliest_tokens(x, weight, backend="native")


@pytest.mark.parametrize(
    ("x", "weight", "sentence"),
    [
        (torch.zeros(2, 3), torch.zeros(4, 5), "rows, in"),
        (torch.zeros(3), torch.zeros(4, 3), "rows, in"),
        (torch.zeros(2, 3), torch.zeros(0, 3), "something to choose from"),
        (torch.zeros(2, 0), torch.zeros(4, 0), "something to choose from"),
        (torch.zeros(2, 3).double(), torch.zeros(4, 3), "float64"),
        (torch.zeros(2, 3), torch.zeros(4, 3).half(), "float16"),
        (torch.zeros(2, 3), torch.zeros(4, 3, device="meta"), "meta"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(x, weight, sentence):
    with pytest.raises(ValueError, match=sentence):
        likeliest_tokens(x, weight)
