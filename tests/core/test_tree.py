"""The draft tree: one drawn by hand, and what holds for every tree."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import tree as trees
from talon_core.testing import draft_trees
from talon_core.tree import TokenTree, chain_of
from talon_core.tree_arrays import ints

SEVEN = TokenTree(
    tokens=[10, 11, 12, 13, 11, 12, 14],
    parents=[-1, 0, 0, 1, 1, 2, 3],
    path_logp=[0.0, -0.5, -1.0, -0.75, -2.0, -1.5, -3.0],
)
#       10            0
#      /  \          / \
#    11    12       1   2
#   /  \     \     / \   \
#  13  11    12   3   4   5
#  |              |
#  14             6
MASK = [
    [1, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0],
    [1, 0, 1, 0, 0, 0, 0],
    [1, 1, 0, 1, 0, 0, 0],
    [1, 1, 0, 0, 1, 0, 0],
    [1, 0, 1, 0, 0, 1, 0],
    [1, 1, 0, 1, 0, 0, 1],
]


def ancestors(tree, node):
    """The node and all above it, found by walking up."""
    found = set()
    while node != -1:
        found.add(node)
        node = int(tree.parents[node])
    return found


@st.composite
def trees_and_nodes(draw):
    """A tree and one of its nodes."""
    tree = draw(draft_trees())
    return tree, draw(st.integers(0, len(tree) - 1))


@st.composite
def wide_trees(draw):
    """Trees whose masks need more than one word a row."""
    nodes = draw(st.integers(30, 100))
    parents = [-1, *(draw(st.integers(0, node)) for node in range(nodes - 1))]
    return TokenTree(tokens=range(nodes), parents=parents, path_logp=np.zeros(nodes))


def closed_sets(tree, chosen):
    """The nodes of `chosen` whose parents are all chosen as well, the root always."""
    kept = [0]
    for node in range(1, len(tree)):
        if chosen[node] and int(tree.parents[node]) in kept:
            kept.append(node)
    return kept


def test_the_tree_of_seven_has_these_depths_bits_and_mask():
    assert len(SEVEN) == 7
    assert SEVEN.depths.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert SEVEN.ancestor_mask().astype(int).tolist() == MASK
    assert SEVEN.ancestor_bits.tolist() == [
        [0b0000001],
        [0b0000011],
        [0b0000101],
        [0b0001011],
        [0b0010011],
        [0b0100101],
        [0b1001011],
    ]


def test_the_tree_of_seven_is_walked():
    assert SEVEN.path(6).tolist() == [0, 1, 3, 6]
    assert SEVEN.path(0).tolist() == [0]
    assert (SEVEN.child(0, 12), SEVEN.child(1, 11), SEVEN.child(0, 13), SEVEN.child(6, 10)) == (2, 4, None, None)
    assert SEVEN.follow([11, 13, 14, 10]).tolist() == [0, 1, 3, 6]
    assert SEVEN.follow([12, 13]).tolist() == [0, 2]
    assert SEVEN.follow([]).tolist() == [0]
    assert SEVEN.best(4).tolist() == [0, 1, 3, 2]


def test_the_tree_of_seven_is_pruned():
    kept = SEVEN.keep([3, 0, 6, 1])
    assert kept.tokens.tolist() == [10, 11, 13, 14]
    assert kept.parents.tolist() == [-1, 0, 1, 2]
    assert kept.path_logp.tolist() == [0.0, -0.5, -0.75, -3.0]


def test_a_root_is_a_tree():
    tree = TokenTree.root(5)
    assert (tree.tokens.tolist(), tree.parents.tolist(), tree.path_logp.tolist()) == ([5], [-1], [0.0])
    assert tree.ancestor_mask().tolist() == [[True]]


@given(draft_trees() | wide_trees())
def test_a_node_may_attend_to_itself_and_its_ancestors_alone(tree):
    mask = tree.ancestor_mask()
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        assert set(np.flatnonzero(mask[node]).tolist()) == ancestors(tree, node)


@given(draft_trees() | wide_trees())
def test_bits_are_the_mask_packed_and_nothing_behind_it(tree):
    words = -(-len(tree) // 32)
    assert tree.ancestor_bits.shape == (len(tree), words)
    for node, row in enumerate(tree.ancestor_bits.tolist()):
        packed = sum(word << 32 * place for place, word in enumerate(row))
        assert packed == sum(1 << ancestor for ancestor in ancestors(tree, node))


@given(trees_and_nodes())
def test_a_path_leads_from_the_root_down_to_its_node(of):
    tree, node = of
    path = tree.path(node)
    assert (path[0], path[-1]) == (0, node)
    assert tree.parents[path[1:]].tolist() == path[:-1].tolist()
    assert len(path) == tree.depths[node] + 1


@given(trees_and_nodes())
def test_following_a_paths_tokens_finds_the_path(of):
    tree, node = of  # siblings of these trees hold different tokens
    path = tree.path(node)
    assert tree.follow(tree.tokens[path[1:]]).tolist() == path.tolist()
    if node:
        assert tree.child(int(tree.parents[node]), int(tree.tokens[node])) == node


@given(draft_trees(vocab_size=3), st.lists(st.integers(0, 3), max_size=6))
def test_following_stops_where_the_tree_does(tree, tokens):
    found = tree.follow(tokens)
    assert tree.parents[found[1:]].tolist() == found[:-1].tolist()
    assert tree.tokens[found[1:]].tolist() == tokens[: len(found) - 1]
    if len(found) <= len(tokens):
        assert tree.child(int(found[-1]), tokens[len(found) - 1]) is None


@given(trees_and_nodes())
def test_every_prefix_is_a_tree(of):
    tree, node = of
    prefix = tree.keep(np.arange(node + 1))
    for whole, part in ((tree.tokens, prefix.tokens), (tree.parents, prefix.parents), (tree.depths, prefix.depths)):
        assert whole[: node + 1].tolist() == part.tolist()
    assert (tree.ancestor_mask()[: node + 1, : node + 1] == prefix.ancestor_mask()).all()


@given(trees_and_nodes())
def test_extending_a_prefix_by_the_rest_gives_the_tree(of):
    tree, node = of
    rest = slice(node + 1, None)
    whole = tree.keep(np.arange(node + 1)).extend(tree.tokens[rest], tree.parents[rest], tree.path_logp[rest])
    assert whole.tokens.tolist() == tree.tokens.tolist()
    assert whole.parents.tolist() == tree.parents.tolist()
    assert whole.path_logp.tolist() == tree.path_logp.tolist()


@given(draft_trees(), st.lists(st.booleans(), min_size=24, max_size=24), st.randoms())
def test_what_is_kept_keeps_its_paths_and_its_order(tree, chosen, random):
    nodes = closed_sets(tree, chosen)
    shuffled = random.sample(nodes, len(nodes))
    kept = tree.keep(shuffled)
    assert kept.path_logp.tolist() == tree.path_logp[nodes].tolist()
    for new, old in enumerate(nodes):
        assert kept.tokens[kept.path(new)].tolist() == tree.tokens[tree.path(old)].tolist()


@given(draft_trees(), st.lists(st.booleans(), min_size=24, max_size=24))
def test_nodes_of_a_part_are_those_that_were_kept(tree, chosen):
    nodes = closed_sets(tree, chosen)
    assert tree.nodes_of(tree.keep(nodes)) == nodes


def test_nodes_that_are_not_here_are_told_and_so_are_those_below_them():
    invented = SEVEN.keep([0, 2]).extend(np.array([13, 10]), np.array([1, 2]), np.array([-2.0, -3.0]))
    assert SEVEN.nodes_of(invented) == [0, 2, -1, -1]


@given(draft_trees())
def test_other_scores_leave_the_nodes_as_they_are(tree):
    scored = tree.scored(2 * tree.path_logp)
    assert scored.path_logp.tolist() == [2 * logp for logp in tree.path_logp.tolist()]
    for same in ("tokens", "parents", "depths"):
        assert getattr(scored, same).tolist() == getattr(tree, same).tolist()
    with pytest.raises(ValueError, match=rf"path_logp has shape \({len(tree) + 1},\); the tree has {len(tree)} nodes"):
        tree.scored(np.zeros(len(tree) + 1))
    with pytest.raises(ValueError, match="read-only"):
        scored.path_logp[0] = 1.0


@given(draft_trees(), st.integers(0, 30))
def test_the_best_nodes_are_a_tree_and_none_outside_scores_more(tree, count):
    best = tree.best(count)
    assert len(best) == min(count, len(tree)) == len(set(best.tolist()))
    if count:
        assert len(tree.keep(best)) == len(best)
        left = np.setdiff1d(np.arange(len(tree)), best)
        assert not len(left) or tree.path_logp[left].max() <= tree.path_logp[best].min()
    assert (np.diff(tree.path_logp[best]) <= 0).all()


@given(draft_trees(), st.integers(1, 30), st.randoms())
def test_the_best_nodes_are_a_tree_even_where_rounding_lifts_a_child_above_its_parent(tree, count, random):
    lifted = TokenTree(
        tokens=tree.tokens, parents=tree.parents, path_logp=[0.0, *(random.uniform(-1, 1) for _ in tree.tokens[1:])]
    )
    best = lifted.best(count).tolist()
    assert len(lifted.keep(best)) == min(count, len(tree))
    place = {node: rank for rank, node in enumerate(best)}
    assert all(place[int(lifted.parents[node])] < place[node] for node in best if node)


@given(draft_trees(), st.integers(0, 30), st.randoms())
def test_the_best_nodes_are_the_first_of_all_whatever_scores_there_are(tree, count, random):
    scores = [random.choice([0.0, -0.0, -1.0, -2.0, -np.inf, np.nan]) for _ in tree.tokens[1:]]
    odd = TokenTree(tokens=tree.tokens, parents=tree.parents, path_logp=[0.0, *scores])
    for number in (count, np.uint8(count), np.uint64(count)):
        assert odd.best(number).tolist() == odd.best(len(odd))[:count].tolist()


def test_arrays_of_several_axes_make_no_tree():
    with pytest.raises(ValueError, match="have one axis, the nodes"):
        TokenTree.root([1, 2])
    with pytest.raises(ValueError, match="have one axis"):
        SEVEN.keep([[0]])


def test_ties_go_to_the_earlier_node():
    assert TokenTree([1, 2, 3, 4], [-1, 0, 0, 1], [0.0, -1.0, -1.0, -1.0]).best(3).tolist() == [0, 1, 2]


def test_fewer_than_none_are_none():
    assert SEVEN.best(-1).tolist() == SEVEN.best(0).tolist() == []


@given(draft_trees())
def test_nothing_of_a_tree_can_be_changed(tree):
    for array in (tree.tokens, tree.parents, tree.path_logp, tree.depths, tree.ancestor_bits):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        tree.tokens = tree.parents


def test_a_tree_is_a_copy_of_what_it_was_made_from():
    tokens = np.array([3, 4])
    tree = TokenTree(tokens=tokens, parents=[-1, 0], path_logp=[0.0, -1.0])
    tokens[:] = 9
    assert tree.tokens.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (([], [], []), r"equally many tokens, parents and path_logp, at least one: got 0, 0 and 0"),
        (([1, 2], [-1], [0.0]), r"equally many .*: got 2, 1 and 1"),
        (([1], [-1], [0.0, -1.0]), r"equally many .*: got 1, 1 and 2"),
        (([1], [0], [0.0]), r"node 0 is the root and has parent -1, not 0"),
        (([1, 2], [-1, 1], [0, 0]), r"node 1 has parent 1: .* it would have to be between 0 and 0"),
        (([1, 2, 3], [-1, 2, 0], [0, 0, 0]), r"node 1 has parent 2: a parent must stand before its child"),
        (([1, 2, 3], [-1, 0, -1], [0, 0, 0]), r"node 2 has parent -1: .* between 0 and 1"),
        (([[1, 2]], [-1], [0.0]), r"one axis.*got shapes \(1, 2\), \(1,\) and \(1,\)"),
        (([1], [[-1]], [0.0]), r"one axis"),
        (([1], [-1], [[0.0, 1.0]]), r"one axis"),
    ],
)
def test_what_is_no_tree_is_refused_in_words(arrays, sentence):
    tokens, parents, path_logp = arrays
    with pytest.raises(ValueError, match=sentence):
        TokenTree(tokens=tokens, parents=parents, path_logp=path_logp)


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ([], r"the root, node 0, must be kept"),
        ([1, 3], r"the root, node 0, must be kept"),
        ([0, 3], r"node 3 is kept without its parent, node 1"),
        ([0, 1, 6], r"node 6 is kept without its parent, node 3"),
        ([0, 1, 1], r"node 1 is kept twice"),
        ([0, 0], r"node 0 is kept twice"),
        ([0, 7], r"there is no node 7; the tree has nodes 0 to 6"),
        ([0, -1], r"there is no node -1; the tree has nodes 0 to 6"),
        ([True, True, False, False, False, False, False], r"node 0 is kept twice"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words(nodes, sentence):
    with pytest.raises(ValueError, match=sentence):
        SEVEN.keep(nodes)


def test_a_chain_that_two_threads_make_at_a_time_is_right_and_so_are_longer_ones(monkeypatch):
    lengths = [3001, 3002, 3003]
    began = []

    def chain(nodes):
        return chain_of([0] * nodes, np.zeros(nodes - 1))

    def meanwhile(values):
        if not began:
            began.append(threading.Thread(target=chain, args=(lengths[0],)))
            began[0].start()
            began[0].join(60)
        return ints(values)

    monkeypatch.setattr(trees, "ints", meanwhile)
    for nodes in lengths:
        one = chain(nodes)
        assert one.parents.tolist() == [*range(-1, nodes - 1)]
        assert one.depths.tolist() == [*range(nodes)]
    assert began
