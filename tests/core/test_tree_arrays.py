import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.tree_arrays import SORTED, highest

FEW_SCORES = st.sampled_from([-math.inf, -2.0, -1.5, 0.0, math.inf, math.nan])


@pytest.mark.parametrize("size", [0, 1, 7, SORTED, SORTED + 1, 3 * SORTED])
@given(data=st.data())
def test_the_highest_are_the_first_of_a_stable_sort(size, data):
    some = data.draw(st.lists(FEW_SCORES, min_size=7, max_size=7))
    values = np.array(some * size)[:size]
    count = data.draw(st.integers(-1, size + 1))
    numbers = [place for place in range(size) if not math.isnan(values[place])]
    others = [place for place in range(size) if math.isnan(values[place])]
    ranked = sorted(numbers, key=lambda place: -values[place]) + others
    assert highest(values, count).tolist() == ranked[: max(count, 0)]
