"""Rotary embedding and the write into pages in Triton, by its interpreter or on a GPU, against the definition."""

import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talon_kernels.rotary_write import rotary_write
from talon_kernels.rotary_write.reference import rotary_write_reference, turned
from talon_tests.rounding import check_rounded

TYPES = [torch.float32, torch.bfloat16, torch.float16]
PAGES, PAGE_ROWS = 5, 64


@st.composite
def cases(draw):
    head_dim = draw(st.sampled_from([2, 20, 32, 64, 80, 96, 128, 256]))
    count = draw(st.sampled_from([0, 1, 7, 33]))
    places = st.tuples(st.integers(1, PAGES - 1), st.integers(0, PAGE_ROWS - 1))
    return {
        "count": count,
        "kv_heads": draw(st.integers(1, 3)),
        "group": draw(st.sampled_from([1, 3, 4, 7])),
        "head_dim": head_dim,
        "value_dim": draw(st.sampled_from([head_dim, head_dim, 12, 65])),
        "rotary": draw(st.sampled_from([head_dim, head_dim, 2, 2 * (head_dim // 8) or 2])),
        "places": draw(st.lists(places, min_size=count, max_size=count, unique=True)),
        "interleaved": draw(st.booleans()),
        "of_pairs": draw(st.booleans()),
        "dtype": draw(st.sampled_from(TYPES)),
        "wide_angles": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
    }


def made(case):
    """Queries, keys, values, cos, sin, the pages of the cache, which are NaN, and where rows go."""
    random = torch.Generator().manual_seed(case["seed"])
    count, kv_heads, head_dim, value_dim = (case[name] for name in ("count", "kv_heads", "head_dim", "value_dim"))

    def numbers(*shape):
        return torch.randn(shape, generator=random).to(case["dtype"])

    query = numbers(count, kv_heads * case["group"], head_dim)
    key, value = numbers(count, kv_heads, head_dim), numbers(count, kv_heads, value_dim)
    turns = 7 * torch.rand(count, case["rotary"] // (2 if case["of_pairs"] else 1), generator=random)
    angles = [angle.to(case["dtype"]) for angle in (turns.cos(), turns.sin())]
    if case["wide_angles"]:
        angles = [angle.float() for angle in angles]
    pages = [
        torch.full((PAGES, kv_heads, PAGE_ROWS, dim), torch.nan).to(case["dtype"]) for dim in (head_dim, value_dim)
    ]
    places = torch.tensor(case["places"], dtype=torch.int64).reshape(count, 2)
    return query, key, value, *angles, *pages, places[:, 0].contiguous(), places[:, 1].contiguous()


def how(case):
    return {name: case[name] for name in ("interleaved", "of_pairs")}


def bits(tensor):
    """The bytes of a tensor: NaN equals NaN, 0 is not -0."""
    return tensor.cpu().contiguous().flatten().view(torch.uint8)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_what_is_turned_has_the_error_of_its_type_and_everything_else_its_bits(device, case):
    tensors = made(case)
    query, key, value, *_, keys, values, pages, rows = there = [one.to(device) for one in tensors]
    got = rotary_write(*there, **how(case), backend="triton")
    low = [turned(one, *tensors[3:5], **how(case)) for one in tensors[:2]]
    truth = [turned(one.double(), tensors[3].double(), tensors[4].double(), **how(case)) for one in tensors[:2]]
    check_rounded(got, low[0], truth[0])
    assert got.is_contiguous()
    written = keys[pages, :, rows]
    check_rounded(written, low[1], truth[1])
    for one, own in ((got, query), (written, key)):  # what is behind the dimensions that are turned
        assert torch.equal(bits(one[..., case["rotary"] :]), bits(own[..., case["rotary"] :]))
    assert torch.equal(bits(values[pages, :, rows]), bits(value))
    for buffer in (keys, values):
        buffer[pages, :, rows] = torch.nan
        assert buffer.isnan().all()  # and nothing else was written


@settings(deadline=None, max_examples=30)
@given(case=cases())
def test_the_reference_turns_pairs_and_writes_rows(case):
    case |= {"dtype": torch.float64, "wide_angles": False}
    query, key, value, cos, sin, keys, values, pages, rows = made(case)
    got = rotary_write_reference(query, key, value, cos, sin, keys, values, pages, rows, **how(case))
    half = case["rotary"] // 2
    for pair in range(half):
        a, b = (2 * pair, 2 * pair + 1) if case["interleaved"] else (pair, pair + half)
        at = (pair, pair) if case["of_pairs"] else (a, b)
        for one, own in ((got, query), (keys[pages, :, rows], key)):
            first = own[:, :, a] * cos[:, at[0], None] - own[:, :, b] * sin[:, at[0], None]
            torch.testing.assert_close(one[:, :, a], first)
            second = own[:, :, b] * cos[:, at[1], None] + own[:, :, a] * sin[:, at[1], None]
            torch.testing.assert_close(one[:, :, b], second)
    assert torch.equal(values[pages, :, rows], value)


def test_rows_that_nobody_reads_may_go_to_one_place(device):
    case = {"count": 4, "kv_heads": 2, "group": 2, "head_dim": 16, "value_dim": 16, "rotary": 8}
    case |= {"wide_angles": False, "places": [(0, 0), (3, 9), (0, 0), (0, 0)], "dtype": torch.float32, "seed": 0}
    tensors = made(case | {"interleaved": False, "of_pairs": False})
    query, key, value, cos, sin, keys, values, pages, rows = (one.to(device) for one in tensors)
    got = rotary_write(query, key, value, cos, sin, keys, values, pages, rows, backend="triton")
    torch.testing.assert_close(got, turned(query, cos, sin, False, False))
    torch.testing.assert_close(keys[3, :, 9], turned(key, cos, sin, False, False)[1])
    assert any(torch.equal(values[0, :, 0], value[row]) for row in (0, 2, 3))
    assert keys.isnan().sum() == keys.numel() - 2 * 2 * 16


def test_what_is_no_contiguous_piece_is_read_as_it_is(device):
    query, key, value = (torch.randn(3, heads, 40).to(device)[..., ::2] for heads in (4, 2, 2))
    angles = torch.rand(3, 40).to(device)
    keys, values = torch.full((2, 2, 2, 64, 20), torch.nan).to(device)
    pages, rows = torch.ones(3, dtype=torch.int64).to(device), torch.arange(3).to(device)
    halves = angles[:, :20], angles[:, 20:]
    got = rotary_write(query, key, value, *halves, keys, values, pages, rows, interleaved=True, backend="triton")
    torch.testing.assert_close(got, turned(query, *halves, True, False))
    torch.testing.assert_close(keys[1, :, :3].transpose(0, 1), turned(key, *halves, True, False))


def fitting():
    names = ("query", "key", "value", "cos", "sin", "keys", "values", "pages", "rows")
    shapes = ((3, 4, 8), (3, 2, 8), (3, 2, 6), (3, 8), (3, 8), (5, 2, 64, 8), (5, 2, 64, 6))
    places = torch.tensor([1, 1, 4]), torch.tensor([0, 63, 2])
    return dict(zip(names, [*map(torch.zeros, shapes), *places], strict=True))


WRONG = {
    "query is (rows, heads, head_dim)": {"query": torch.zeros(3, 32)},
    "got (2, 4, 8), (3, 2, 8), (3, 2, 6)": {"query": torch.zeros(2, 4, 8)},
    "queries a multiple of them; query has 3, key 2": {"query": torch.zeros(3, 3, 8)},
    "value 1": {"value": torch.zeros(3, 1, 6)},
    "rotary at most 8": {"cos": torch.zeros(3, 10), "sin": torch.zeros(3, 10)},
    "got (3, 8) and (3, 6)": {"sin": torch.zeros(3, 6)},
    "and 5 is odd": {"cos": torch.zeros(3, 5), "sin": torch.zeros(3, 5)},
    "sin torch.float16": {"sin": torch.zeros(3, 8).half()},
    "value torch.float16": {"value": torch.zeros(3, 2, 6).half()},
    "keys is (pages, 2, page_rows, 8)": {"keys": torch.zeros(5, 2, 64, 6)},
    "values must be contiguous": {"values": torch.zeros(5, 64, 2, 6).transpose(1, 2)},
    "the same pages, of as many rows": {"values": torch.zeros(5, 2, 32, 6)},
    "pages is (3,), int64": {"pages": torch.tensor([1, 1, 4], dtype=torch.int32)},
    "rows is (3,), int64": {"rows": torch.tensor([1, 1])},
    "its stride is 2": {"rows": torch.arange(6)[::2]},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_does_not_fit_is_refused_in_words(words):
    tensors = fitting()
    assert rotary_write(*tensors.values()).shape == (3, 4, 8)
    with pytest.raises(ValueError, match=re.escape(words)):
        rotary_write(*(tensors | WRONG[words]).values())


def test_backends_that_cannot_run_are_refused(device):
    tensors = [one.to(device) for one in fitting().values()]
    with pytest.raises(ValueError, match="no backend 'native' of rotary_write; there are: triton, reference"):
        rotary_write(*tensors, backend="native")
    wide = [one.double() if one.is_floating_point() else one for one in tensors]
    with pytest.raises(ValueError, match=r"float32, bfloat16 and float16, not in torch\.float64"):
        rotary_write(*wide, backend="triton")
    many = [torch.zeros(3, 2 * 512, 64), torch.zeros(3, 2, 64), torch.zeros(3, 2, 6), *torch.zeros(2, 3, 8)]
    many += [torch.zeros(5, 2, 64, 64), torch.zeros(5, 2, 64, 6), *fitting().values()][:2]
    with pytest.raises(ValueError, match="rotary_write takes rows of up to 16384 numbers in triton, not 32768"):
        rotary_write(*(one.to(device) for one in (*many, tensors[7], tensors[8])), backend="triton")
