"""Tries of continuations against counting by hand, and the laws that come of them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.drafter import Committed, Frontier
from talon_core.testing import draft_trees
from talon_core.tree import IntArray, TokenTree
from talon_drafters.lookup import Lookup, LookupDrafter, Trie
from talon_drafters.lookup.trie import FEW

VOCAB = 5


@st.composite
def continuations(draw: st.DrawFn) -> np.ndarray:
    """Few or many rows of a few letters; VOCAB ends a row."""
    rows = draw(st.sampled_from([1, 2, 7, FEW, FEW + 1, 3 * FEW]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shares = rng.dirichlet(np.full(VOCAB + 1, draw(st.sampled_from([0.1, 1.0, 10.0]))))
    return rng.choice(VOCAB + 1, (rows, draw(st.integers(1, 6))), p=shares).astype(np.int64)


def by_hand(rows: np.ndarray, most: int) -> dict[tuple[int, ...], int]:
    """The most frequent beginnings, shorter ones first among equals, then those of lower tokens."""
    counts: Counter[tuple[int, ...]] = Counter()
    for row in rows.tolist():
        kept = row[: row.index(VOCAB)] if VOCAB in row else row
        counts.update(tuple(kept[:size]) for size in range(1, len(kept) + 1))
    order = sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
    return dict(order[:most])


def written_out(trie: Trie) -> dict[tuple[int, ...], int]:
    found, waiting = {}, [((), 0)]
    while waiting:
        path, node = waiting.pop()
        found[path] = trie.counts[node]
        waiting += [((*path, token), child) for token, child in trie.children[node].items()]
    return found


@given(continuations(), st.integers(1, 80))
def test_the_trie_has_the_most_frequent_beginnings_with_their_counts(rows, most):
    trie = Trie.most_frequent(rows, VOCAB, most)
    assert written_out(trie) == {(): len(rows), **by_hand(rows, most)}
    assert len(trie) <= most + 1
    for children in trie.children:
        counts = [trie.counts[child] for child in children.values()]
        assert counts == sorted(counts, reverse=True)


def test_a_path_is_followed_as_far_as_the_trie_goes():
    trie = Trie.chain([3, 1])
    assert [trie.after(path) for path in ([], [3], [3, 1], [1], [3, 1, 0], [0, 0])] == [0, 1, 2, None, None, None]
    assert written_out(trie) == {(): 1, (3,): 1, (3, 1): 1}


class Given(Lookup):
    """Finds the same whatever the text is, and counts how often it is asked."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.rows, self.asked = np.array(rows), 0

    def append(self, tokens: IntArray) -> None:
        pass

    def find(self) -> Trie:
        self.asked += 1
        return Trie.most_frequent(self.rows, VOCAB, 64)


def opened(rows: Sequence[Sequence[int]]) -> tuple[LookupDrafter, Given]:
    lookup = Given(rows)
    drafter = LookupDrafter(lambda: lookup, VOCAB, len(rows[0]))
    drafter.open(0, np.array([1]), 10)
    return drafter, lookup


ROWS = [[1, 2, 5], [1, 2, 3], [1, 0, 5], [4, 5, 5]]


@given(draft_trees(vocab_size=VOCAB), st.integers(1, VOCAB))
def test_a_child_s_probability_is_its_share_and_what_is_left_goes_to_all_evenly(tree, width):
    drafter, _ = opened(ROWS)
    nodes = np.arange(len(tree))
    (candidates,) = drafter.propose([Frontier(0, tree, nodes, width)]).candidates
    for row, node in enumerate(nodes):
        path = tree.tokens[tree.path(node)][1:].tolist()
        through = [other for other in ROWS if other[: len(path)] == path]
        law = np.full(VOCAB, 1 / VOCAB)
        if through:
            counts = np.bincount([other[len(path)] if len(path) < 3 else VOCAB for other in through], minlength=6)
            law = (counts[:VOCAB] + counts[VOCAB] / VOCAB) / len(through)
        np.testing.assert_allclose(candidates.law(row), law, rtol=1e-12)
        known = candidates.tokens[row] >= 0
        follow = {other[len(path)] for other in through if len(path) < 3} - {VOCAB}
        assert {*candidates.tokens[row][known].tolist()} <= follow
        assert known.sum() == min(width, len(follow))
        np.testing.assert_allclose(np.exp(candidates.logp[row][known]), law[candidates.tokens[row][known]], rtol=1e-12)
        assert (np.diff(candidates.logp[row][known]) <= 0).all()


def test_one_look_up_does_for_a_round():
    drafter, lookup = opened(ROWS)
    assert lookup.asked == 0
    for token in (1, 4):
        tree = TokenTree([1, token], [-1, 0], [0.0, -0.5])
        for nodes in ([0], [1]):
            drafter.propose([Frontier(0, tree, np.array(nodes), 3)])
    assert lookup.asked == 1
    drafter.commit({0: Committed(np.array([2]), np.array([0]))})
    assert lookup.asked == 1
    drafter.propose([Frontier(0, TokenTree.root(2), np.array([0]), 3)])
    assert lookup.asked == 2


@pytest.mark.parametrize("rows", [[[5]], [[5, 5], [5, 5]]])
def test_where_nothing_follows_nothing_is_offered(rows):
    (candidates,) = opened(rows)[0].propose([Frontier(0, TokenTree.root(1), np.array([0]), 3)]).candidates
    assert candidates.tokens.tolist() == [[-1]]
    np.testing.assert_allclose(candidates.law(0), np.full(VOCAB, 1 / VOCAB))
