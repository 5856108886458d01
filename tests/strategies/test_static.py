import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import check_tree_policy, draft_trees, untied_drafters
from talon_strategies import StaticTree


def places(tree):
    """Every path of a tree but the root's, as a shape: the tokens stand for ranks."""
    return [tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, len(tree))]


shapes = draft_trees(max_nodes=20, vocab_size=8).map(places).filter(bool)


def test_keeps_the_contract():
    check_tree_policy(StaticTree, max_examples=30)


@pytest.mark.parametrize("shape", ["0", "3", "0;1;2;3;4;5", "0;0.0;0.0.0;0.0.0.0", "5;2;2.4;2.4.0"])
def test_keeps_the_contract_in_any_shape(shape):
    check_tree_policy(lambda: StaticTree(shape=shape), max_examples=30)


@given(shape=shapes, drafter=untied_drafters(8), knows=st.none() | st.integers(1, 8))
def test_the_tree_has_the_shape_as_far_as_the_drafter_knows(draft, shape, drafter, knows):
    tree = draft(StaticTree(shape=shape), type(drafter)(drafter.laws, knows=knows)).tree
    ranks = set()
    for path in places(tree):
        laws = [drafter.law_after((0, *path[:depth])) for depth in range(len(path))]
        ranks.add(tuple(int((law > law[token]).sum()) for law, token in zip(laws, path, strict=True)))
    assert ranks == {place for place in shape if max(place) < (knows or 8)}


@given(shape=shapes)
def test_text_and_paths_say_the_same(shape):
    text = ";".join(".".join(map(str, place)) for place in shape)
    assert StaticTree(shape=text) == StaticTree(shape=shape) == StaticTree(shape=reversed(shape))


def test_the_default_holds_the_fifteen_likeliest_paths():
    right = (0.6, 0.15, 0.07)
    every = [place for length in range(1, 8) for place in product(range(3), repeat=length)]
    worth = {place: math.prod(right[rank] for rank in place) for place in every}
    least = min(worth[place] for place in StaticTree().shape)
    assert StaticTree().budget == 16
    assert all(worth[place] <= least * (1 + 1e-9) for place in every if place not in StaticTree().shape)


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        ("", "is not a list of paths"),
        ("0;one", "is not a list of paths"),
        ("0;;1", "is not a list of paths"),
        ("0;-1", "0 for the best child"),
        ("0;1;0", "path 0 twice"),
        ("0;1.0", "path 1.0 without its parent 1: add 1"),
        ("0;0.0.0", "path 0.0.0 without its parent 0.0"),
        ([], "needs at least one"),
        ([()], "one or more child ranks"),
        ([(0,), (0.5,)], "0 for the best child"),
        ([0, 1], r"shape is \[0, 1\]; it must be paths of child ranks, as in \[\[0\], \[1\], \[0, 0\]\]"),
        (3, "shape is 3; it must be paths of child ranks"),
        ([["a"], [0]], "it must be paths of child ranks"),
    ],
)
def test_a_bad_shape_is_refused_in_words(shape, complaint):
    with pytest.raises(ValueError, match=complaint):
        StaticTree(shape=shape)
