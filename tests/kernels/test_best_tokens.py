"""The best tokens of rows of scores, and the most likely token of each: choices in C are PyTorch's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.runtime.cache import TreeCache
from talon_core.runtime.inputs import pass_inputs
from talon_core.tree import TokenTree
from talon_kernels.best_tokens import best_tokens
from talon_kernels.native import switch_off
from talon_kernels.recorded.recorder import NativeRecorder

TOKENS = (1, 2, 7, 63, 64, 100, 129, 1000)
INF, NAN = float("inf"), float("nan")


def scores(*shape, seed=0, scale=5.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def split(found):
    tokens, logp = found.chunk(2, dim=-1)
    return tokens.long(), logp


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("width", [1, 3, 16, 64])
def test_they_are_the_references_with_the_error_of_float32(library, check_error, tokens, width):
    x = scores(7, tokens, seed=tokens)
    got, logp = split(best_tokens(x, width, backend="native"))
    low_tokens, low = split(best_tokens(x, width, backend="reference"))
    truth = torch.log_softmax(x.double(), -1).gather(1, got)
    assert torch.equal(got, low_tokens)  # no two random scores are equal
    assert got.shape == (7, min(width, tokens))
    check_error(logp, low, truth, x)


@pytest.mark.parametrize("tokens", TOKENS)
def test_of_equal_scores_the_earlier_comes_first(library, tokens):
    x = scores(5, tokens, scale=1.0).round()
    got, _ = split(best_tokens(x, 8, backend="native"))
    expected = x.sort(dim=-1, descending=True, stable=True).indices[:, :8]
    assert torch.equal(got, expected)


@settings(deadline=None)
@given(rows=st.integers(1, 20), tokens=st.integers(1, 300), width=st.integers(1, 20), threads=st.integers(1, 3))
def test_a_row_has_the_same_bits_in_any_company(library, rows, tokens, width, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = scores(rows, tokens, seed=rows)
        alone = torch.cat([best_tokens(row[None], width, backend="native") for row in x])
        assert torch.equal(best_tokens(x, width, backend="native"), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("odd", [NAN, INF])
@pytest.mark.parametrize("place", [0, 5, 99])
def test_a_row_without_a_law_has_no_log_probabilities(library, odd, place):
    x = scores(2, 100)
    x[1, place] = odd
    tokens, logp = split(best_tokens(x, 4, backend="native"))
    assert logp[0].isfinite().all()
    assert logp[1].isnan().all()
    assert ((tokens >= 0) & (tokens < 100)).all()


def test_what_cannot_be_has_no_probability(library):
    x = torch.full((1, 70), -INF)
    x[0, 66] = 3.0
    tokens, logp = split(best_tokens(x, 3, backend="native"))
    assert tokens.tolist() == [[66, 0, 1]]
    assert logp.tolist() == [[0.0, -INF, -INF]]


def test_rows_may_lie_apart_in_memory(library):
    x = scores(4, 200)
    assert torch.equal(
        best_tokens(x[:, 10:90], 5, backend="native"), best_tokens(x[:, 10:90].contiguous(), 5, backend="native")
    )


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ((torch.zeros(3), 1), r"scores are \(rows, tokens\), of 1 to"),
        ((torch.zeros(3, 0), 1), r"of 1 to 2\^24 - 1 tokens; got \(3, 0\)"),
        ((torch.zeros(3, 4, dtype=torch.float64), 1), "takes float32 on the CPU, got torch.float64"),
        ((torch.zeros(3, 4), 0), "the width is 0; at least 1 token"),
        ((torch.zeros(3, 4), 1, "magic"), "no backend 'magic' of best_tokens; there are: native, reference"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(bad, sentence):
    scored, width, *backend = bad
    with pytest.raises(ValueError, match=sentence):
        best_tokens(scored, width, backend=backend[0] if backend else None)


def test_without_kernels_the_reference_answers():
    x = scores(3, 50)
    with switch_off("there is no compiler"):
        assert torch.equal(best_tokens(x, 4), best_tokens(x, 4, backend="reference"))
        with pytest.raises(ValueError, match="there is no compiler"):
            best_tokens(x, 4, backend="native")


def walked(library, work, ids):
    """A pass over a chain of tokens, written down and walked."""
    tree = TokenTree(np.array(ids), np.arange(-1, len(ids) - 1), np.zeros(len(ids)))
    cache = TreeCache()
    cache.open(0, len(ids))
    return NativeRecorder(library).record(work, cache, len(ids), {}).run(pass_inputs({0: (tree, 0)}, [0]), {})


@pytest.mark.parametrize("tokens", TOKENS)
def test_a_walked_pass_chooses_the_first_of_the_largest_as_pytorch_does(library, tokens):
    table = scores(40, tokens).round()
    table[1] = -INF
    table[2, tokens // 2] = NAN
    table[3, tokens // 3], table[3, tokens - 1] = INF, NAN
    table[4, :] = 7.0
    ids = [*range(40)]
    (found,) = walked(library, lambda view: (table.index_select(0, view.ids).argmax(-1),), ids)
    assert found.dtype == torch.int64
    assert torch.equal(found, table[ids].argmax(-1))


def test_a_walked_pass_finds_the_best_tokens(library):
    table = scores(40, 77)
    recorder = NativeRecorder(library)
    ids = [3, 39, 0, 3]
    (found,) = walked(library, lambda view: (recorder.best_numbers(table.index_select(0, view.ids), 4),), ids)
    assert torch.equal(found, best_tokens(table[ids], 4, backend="native"))


def test_a_row_that_a_table_does_not_have_is_told(library):
    table = scores(40, 7)
    with pytest.raises(RuntimeError, match="names a row that its table does not have"):
        walked(library, lambda view: (table.index_select(0, view.ids),), [3, 40])
