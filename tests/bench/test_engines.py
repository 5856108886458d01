"""What counts of what something else has decoded."""

import numpy as np
import pytest

from talon_core.bench.engines import counted
from talon_core.request import Request


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ([5, 6, 7], [5, 6, 7]),
        ([5, 6, 7, 8, 9], [5, 6, 7, 8]),  # beyond the limit
        ([5, 2, 7], [5, 2]),  # beyond the end of the text
        ([2, 2, 2], [2]),
        ([5, 6, 7, 8, 2], [5, 6, 7, 8]),  # the end came too late
        ([5, 3], [5, 3]),
    ],
)
def test_tokens_count_up_to_and_including_the_end_and_never_beyond_the_limit(given, counts):
    assert counted(given, Request(np.arange(3), 4, eos=frozenset([2, 3]))) == counts
