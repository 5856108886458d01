"""A narrow copy and its weight: the comparison in C against plain PyTorch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_kernels.native import switch_off
from talon_kernels.same_numbers import same_numbers
from talon_kernels.same_numbers.reference import same_numbers_reference


def copies(*shape, seed=0):
    narrow = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    return narrow, narrow.float()


@settings(deadline=None)
@given(rows=st.integers(1, 100), columns=st.integers(1, 1000), where=st.floats(0, 1), bit=st.integers(0, 31))
def test_any_bit_of_any_number_counts(library, rows, columns, where, bit):
    narrow, wide = copies(rows, columns)
    assert same_numbers(narrow, wide, backend="native")
    assert same_numbers_reference(narrow, wide)
    bits = wide.view(torch.int32).view(-1)
    bits[int(where * (len(bits) - 1))] ^= 1 << bit if bit < 31 else -(1 << 31)
    assert not same_numbers(narrow, wide, backend="native")
    assert not same_numbers_reference(narrow, wide)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_threads_share_the_work(library, threads, count):
    threads(count)
    for size in (0, 1, 16384, 16385, 100_003):
        narrow, wide = copies(size)
        assert same_numbers(narrow, wide, backend="native")
        for at in {0, size // 2, size - 1} if size else ():
            wide[at] += 1
            assert not same_numbers(narrow, wide, backend="native")
            wide[at] -= 1


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_special_numbers_are_compared_by_their_bits(library, backend):
    narrow = torch.tensor([float("inf"), float("nan"), 0.0, -0.0]).to(torch.bfloat16)
    assert same_numbers(narrow, narrow.float(), backend=backend)
    assert not same_numbers(narrow, narrow.float().abs(), backend=backend)


def test_strides_do_not_matter(library):
    narrow, wide = copies(63, 100)
    for backend in ("native", "reference"):
        assert same_numbers(narrow.t(), wide.t(), backend=backend)
        assert not same_numbers(narrow.t(), wide.roll(1).t(), backend=backend)


def test_without_a_compiler_plain_pytorch_answers():
    with switch_off("no compiler today"):
        assert same_numbers(*copies(7))
        with pytest.raises(ValueError, match="no compiler today"):
            same_numbers(*copies(7), backend="native")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: same_numbers(torch.zeros(2).bfloat16(), torch.zeros(3)), "one shape"),
        (lambda: same_numbers(torch.zeros(2), torch.zeros(2)), r"got torch\.float32 on cpu for torch\.bfloat16"),
        (lambda: same_numbers(torch.zeros(2).bfloat16(), torch.zeros(2).half()), "float16 on cpu for"),
        (lambda: same_numbers(*copies(2), backend="magic"), "there are: native, reference"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
