"""A pass over prompts attends as a chain of tree nodes does, whatever is cached before it."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talon_core.attention import TreeLayout
from talon_core.runtime.passes import CHEAP, PromptPass
from talon_kernels import ReferenceAttention


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
