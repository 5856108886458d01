"""What is counted of rounds."""

import numpy as np
import pytest

from talon_core.bench.measurement import acceptance_by_draw
from talon_core.drawn import Drawn
from talon_core.rounds import Round
from talon_core.tree import TokenTree

LAW = [0.0, 0.5, 0.3, 0.2]
TREE = TokenTree([9, 0, 2, 1], [-1, 0, 0, 0], np.zeros(4), {0: Drawn([2, 1], LAW)})
"""A fixed child and two drawn ones."""


def walked(*path):
    tokens = np.append(TREE.tokens[[*path[1:]]], 7)
    return Round(TREE, np.array(path), tokens, len(TREE), 1, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_acceptance_is_counted_draw_by_draw_and_a_fixed_child_is_none_of_them():
    assert acceptance_by_draw([walked(0, 2), walked(0, 2), walked(0, 3), walked(0)]) == pytest.approx([0.5, 0.25])
    assert acceptance_by_draw([walked(0, 1)]) == [0.0, 0.0]
    assert acceptance_by_draw([]) == []
