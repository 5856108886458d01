"""A pass over prompts attends as a chain of tree nodes does, whatever is cached before it."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talon_core.attention import TreeLayout
from talon_core.runtime.passes import CHEAP, PromptPass
from talon_kernels import ReferenceAttention
from talon_kernels.backends import NativeAttention
from talon_kernels.native import load


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(1, 40), st.none() | st.integers(1, 60), st.integers(1, 3))
@example(3, CHEAP * 3, None, 2)
@example(3, CHEAP * 3 - 1, None, 2)
@example(3, CHEAP * 3, 5, 2)
def test_a_prompts_tokens_see_what_came_before_them(start: int, count: int, window: int | None, group: int) -> None:
    torch.manual_seed(count)
    query = torch.randn(2, 2 * group, count, 8, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, start + count, 8, dtype=torch.float64)
    backend = ReferenceAttention()
    found = PromptPass(start, count, backend).attend(query, key, value, 0.3, window=window)
    layout = TreeLayout.chain(start, count)
    for row in range(2):
        expected = backend.attend(query[row], key[None, row], value[None, row], layout, scale=0.3, window=window)
        torch.testing.assert_close(found[row], expected, rtol=0, atol=1e-12)


@pytest.mark.skipif(load() is None, reason="no compiler")
@pytest.mark.parametrize(("start", "window"), [(0, None), (0, 9), (3, None), (30, None), (30, 12)])
def test_a_backend_that_is_faster_at_prompts_computes_them(start: int, window: int | None) -> None:
    """So a prompt's keys and values have the bits that its tokens would have as nodes."""
    torch.manual_seed(start)
    query = torch.randn(2, 4, 21, 16)
    key, value = torch.randn(2, 2, 2, start + 21, 16)
    backend, layout = NativeAttention(), TreeLayout.chain(start, 21)
    found = PromptPass(start, 21, backend).attend(query, key, value, 0.3, window=window)
    for row in range(2):
        own = backend.attend(query[row], key[None, row], value[None, row], layout, scale=0.3, window=window)
        assert torch.equal(found[row], own)
