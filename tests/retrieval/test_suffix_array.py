"""Suffix arrays: the order is that of the first tokens, then of the text."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talon_core.retrieval.suffix_array import COMPARED, suffix_array

LETTERS = st.sampled_from([1, 2, 5, 300, 65_535, 262_144, 2**32 - 1])
"""The highest token id: 16, 8, 3 or 2 tokens and so on are packed into 64 bits."""


@given(LETTERS, st.integers(1, 60), st.integers(0, 30), st.integers(1, 4), st.integers(0, 2**32 - 1))
@example(1, 60, 0, 1, 0)  # all tokens alike
@example(65_535, 60, 16, 1, 0)
def test_suffixes_are_sorted_by_their_first_tokens_then_by_position(highest, length, following, letters, seed):
    rng = np.random.default_rng(seed)
    tokens = rng.choice(np.linspace(0, highest, letters).astype(np.uint32), length + following)
    padded = [*tokens.tolist(), *[highest] * COMPARED]
    expected = sorted(range(length), key=lambda at: (padded[at : at + COMPARED], at))
    assert suffix_array(tokens, length, highest).tolist() == expected


@pytest.mark.parametrize("dtype", ["u1", ">u2", ">u4"])
def test_tokens_of_every_type_are_read(dtype):
    tokens = np.array([3, 1, 3, 1, 2], dtype=dtype)
    found = suffix_array(tokens, 5, 4)
    assert found.dtype == np.uint32
    assert found.tolist() == [3, 1, 4, 2, 0]  # 1 2, 1 3 1 2, 2, 3 1 2, 3 1 3


@pytest.mark.parametrize("highest", [255, 49_152, 262_144])
def test_sorting_takes_no_more_than_fifty_bytes_of_memory_a_token(highest):
    """Those that NumPy has at once; the manual says what this is for a shard of 16,777,216 tokens."""
    length = 2**16
    tokens = np.random.default_rng(0).integers(0, highest, length + COMPARED).astype(np.uint32)
    tracemalloc.start()
    try:
        suffix_array(tokens, length, highest)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 40 < most / length < 50
