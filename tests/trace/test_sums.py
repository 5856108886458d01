"""Checksums of rows, against their definition and against changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import read_trace
from talon_core.trace.sums import SEED, row_sums


def made(rows: int, width: int, tokens: str = "<u2", logp: str = "<f4") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    offered = rng.integers(0, 30_000, (rows, width)).astype(tokens)
    return offered, -rng.exponential(size=(rows, width)).astype(logp)


def by_definition(row: list[int]) -> int:
    factors = [int(each) >> 32 | 1 for each in np.random.PCG64(SEED).random_raw(len(row))]
    found = sum(word * factor for word, factor in zip(row, factors, strict=True)) % 2**32
    return found - 2**32 if found >= 2**31 else found


@pytest.mark.parametrize(("tokens", "logp"), [("<u2", "<f4"), ("<i4", "<f8")])
@pytest.mark.parametrize(("rows", "width"), [(0, 3), (1, 1), (7, 63)])
def test_a_checksum_is_what_it_is_defined_as(rows, width, tokens, logp, monkeypatch):
    offered, likely = made(rows, width, tokens, logp)
    words = [*offered.view("<u2" if tokens == "<u2" else "<u4").tolist()]
    more = [*likely.view("<u4").tolist()]
    expected = [by_definition([*one, *other]) for one, other in zip(words, more, strict=True)]
    assert row_sums(offered, likely).tolist() == expected


@given(st.integers(0, 6), st.integers(0, 8), st.integers(0, 31))
def test_any_bit_that_is_changed_is_seen_in_its_row_alone(row, place, bit):
    offered, likely = made(7, 9)
    before = row_sums(offered, likely)
    likely.view("<u4")[row, place] ^= np.uint32(1 << bit)
    assert np.flatnonzero(row_sums(offered, likely) != before).tolist() == [row]


def test_the_trace_that_travels_with_talon_has_none_and_opens():
    assert [text.recorded.sums for text in read_trace(SHIPPED)] == [None] * 4
