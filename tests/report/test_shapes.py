"""What is counted of one round, on trees drawn by hand."""

import numpy as np

from talon_core.report.figures import ALL
from talon_core.report.shapes import MOST_RANKS, Shapes
from talon_core.rounds import Round
from talon_core.tree import TokenTree

#        0
#    1   2   3      the likeliest is 2, then 3, then 1
#   4 5      6      of 4 and 5, 5 is the likelier
TREE = TokenTree(
    tokens=[9, 1, 2, 3, 4, 5, 6],
    parents=[-1, 0, 0, 0, 1, 1, 3],
    path_logp=np.log([1.0, 0.1, 0.5, 0.2, 0.02, 0.05, 0.1]),
)


def shapes_of(*paths: list[int]) -> Shapes:
    found = Shapes()
    found.add("qa", [Round(TREE, np.array(path), np.arange(len(path))) for path in paths])
    return found


def test_the_rank_of_a_child_is_its_place_among_its_siblings_by_probability():
    found = shapes_of([0, 1, 5], [0, 2]).ranks()
    assert found.tested == [[2, 2, 2], [1, 1]]
    assert found.accepted == [[1, 0, 1], [1, 0]]


def test_children_that_are_all_refused_were_tested():
    found = shapes_of([0], [0, 3]).ranks()
    assert found.tested == [[2, 2, 2], [1]]
    assert found.accepted == [[0, 1, 0], [0]]


def test_layers_are_counted_by_their_nodes():
    found = shapes_of([0], [0, 3]).shapes("talon", "qa")
    assert [dict(counts) for counts in found.widths] == [{3: 2}, {3: 2}]
    assert (found.rounds, found.nodes, found.reached(2), found.mean_width(1)) == (2, 7, 1, 3)
    assert found.set == "qa"


def test_a_round_without_a_tree_counts_as_one_that_was_not_deep():
    found = shapes_of([0])
    found.add("qa", [Round(TokenTree.root(9), np.array([0]), np.array([1]))])
    shape = found.shapes("talon", ALL)
    assert (shape.rounds, shape.nodes, shape.reached(1)) == (2, 4, 0.5)
    assert Shapes().ranks() is None
    assert Shapes().shapes("none", ALL) is None


def test_very_many_siblings_have_ranks_up_to_a_limit():
    wide = TokenTree(range(40), [-1] + [0] * 39, -np.arange(40.0))
    found = Shapes()
    found.add("qa", [Round(wide, np.array([0, 39]), np.array([1, 2]))])
    assert [len(row) for row in found.ranks().tested] == [MOST_RANKS]
    assert sum(found.ranks().accepted[0]) == 0
