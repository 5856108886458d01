"""The product for few rows: right, and the same bits for a row in any company."""

from itertools import product as product_of

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_kernels.native import switch_off
from talon_kernels.skinny_linear import skinny_linear

SIZES = [1, 7, 16, 63, 100]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(x, weight, bias):
    """The definition, by which the truth is computed in float64."""
    y = x @ weight.T
    return y if bias is None else y + bias


def check_products(check_error, backend, inputs, outputs, biased):
    """The error of products with so many rows is that of float32."""
    weight, bias = numbers(outputs, inputs, seed=1), numbers(outputs, seed=2) if biased else None
    for rows in (0, 1, 2, 3, 8, 9, 16, 33, 63):
        x = numbers(rows, inputs, seed=3)
        got = skinny_linear(x, weight, bias, backend=backend)
        low = product(x, weight, bias)
        high = None if bias is None else bias.double()
        size = x.double().abs() @ weight.double().abs().T
        assert got.is_contiguous()
        check_error(got, low, product(x.double(), weight.double(), high), size)


of_all_sizes = pytest.mark.parametrize(("inputs", "outputs"), [*product_of(SIZES, SIZES)])


@of_all_sizes
@pytest.mark.parametrize("biased", [False, True])
def test_error_is_that_of_float32(library, check_error, inputs, outputs, biased):
    check_products(check_error, "native", inputs, outputs, biased)


@of_all_sizes
@pytest.mark.parametrize("biased", [False, True])
def test_so_is_that_of_the_reference(check_error, inputs, outputs, biased):
    check_products(check_error, "reference", inputs, outputs, biased)


@settings(deadline=None)
@given(rows=st.integers(1, 70), inputs=st.integers(1, 200), outputs=st.integers(1, 120), seed=st.integers(0, 9))
def test_a_row_has_the_same_bits_in_any_company(library, rows, inputs, outputs, seed):
    x, weight, bias = numbers(rows, inputs, seed=seed), numbers(outputs, inputs, seed=10), numbers(outputs, seed=11)
    together = skinny_linear(x, weight, bias, backend="native")
    alone = torch.cat([skinny_linear(row[None], weight, bias, backend="native") for row in x])
    assert torch.equal(together, alone)


def test_many_rows_are_cut_into_blocks_without_a_change_of_bits(library):
    x, weight = numbers(300, 1100), numbers(63, 1100, seed=1)  # several blocks of rows
    together = skinny_linear(x, weight, backend="native")
    alone = torch.cat([skinny_linear(row[None], weight, backend="native") for row in x])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("backend", ["native", "reference"])
@settings(deadline=None)
@given(rows=st.integers(1, 70), inputs=st.integers(1, 200), outputs=st.integers(1, 120), seed=st.integers(0, 9))
def test_a_bfloat16_weight_gives_the_bits_of_the_same_numbers_in_float32(library, backend, rows, inputs, outputs, seed):
    x, weight = numbers(rows, inputs, seed=seed), numbers(outputs, inputs, seed=10).bfloat16()
    bias = numbers(outputs, seed=11)
    narrow = skinny_linear(x, weight, bias, backend=backend)
    assert torch.equal(narrow, skinny_linear(x, weight.float(), bias, backend=backend))


@pytest.mark.parametrize("inputs", [100, 577, 1300])
def test_rows_of_bfloat16_that_are_done_in_parts_have_the_same_bits(library, inputs):
    """Of many rows of x; the parts of the last two are of a panel's width, and a shorter one."""
    x, weight = numbers(45, inputs), numbers(63, inputs, seed=1).bfloat16()
    assert torch.equal(skinny_linear(x, weight, backend="native"), skinny_linear(x, weight.float(), backend="native"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_without_columns_make_zeros(library, dtype):
    for rows in (1, 5, 40, 300):
        got = skinny_linear(numbers(rows, 0), torch.zeros((63, 0), dtype=dtype), backend="native")
        assert torch.equal(got, torch.zeros((rows, 63)))


def test_threads_do_not_change_bits(library, threads):
    x, weight = numbers(7, 100), numbers(1000, 100, seed=1)
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        results.append(skinny_linear(x, weight, backend="native"))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [4, 5, 8, 13, 133])
def test_rows_that_share_places_in_caches_have_the_same_bits(library, rows, dtype):
    """Rows of 4,096 bytes, of which more than four are copied to lie elsewhere; 133 are several blocks of rows."""
    x, weight = numbers(rows, 1024, seed=rows), numbers(63, 1024, seed=1).to(dtype)
    together = skinny_linear(x, weight, backend="native")
    alone = torch.cat([skinny_linear(row[None], weight, backend="native") for row in x])
    assert torch.equal(together, alone)


def test_weights_may_lie_at_any_address(library):
    store = numbers(1 + 63 * 100)
    weight = store[1:].view(63, 100)
    x = numbers(1 + 7 * 100, seed=1)[1:].view(7, 100)
    assert torch.equal(
        skinny_linear(x, weight, backend="native"), skinny_linear(x.clone(), weight.clone(), backend="native")
    )


def test_transposed_input_is_taken(check_error):
    x, weight = numbers(100, 7).T, numbers(63, 100, seed=1)
    truth = x.double() @ weight.double().T
    check_error(skinny_linear(x, weight), x @ weight.T, truth, x.double().abs() @ weight.double().abs().T)


def test_without_a_compiler_plain_pytorch_answers():
    x, weight = numbers(7, 100), numbers(63, 100, seed=1)
    with switch_off("no compiler today"):
        assert torch.equal(skinny_linear(x, weight), skinny_linear(x, weight, backend="reference"))
        with pytest.raises(ValueError, match="no compiler today"):
            skinny_linear(x, weight, backend="native")


@pytest.mark.parametrize(
    ("x", "weight", "bias", "sentence"),
    [
        (torch.zeros(2, 3), torch.zeros(4, 5), None, "rows, in"),
        (torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(3), "rows, in"),
        (torch.zeros(3), torch.zeros(4, 3), None, "rows, in"),
        (torch.zeros(2, 3).double(), torch.zeros(4, 3).double(), None, "float64"),
        (torch.zeros(2, 3, device="meta"), torch.zeros(4, 3), None, "meta"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(x, weight, bias, sentence):
    with pytest.raises(ValueError, match=sentence):
        skinny_linear(x, weight, bias)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="there are: native, reference"):
        skinny_linear(torch.zeros(1, 1), torch.zeros(1, 1), backend="magic")
