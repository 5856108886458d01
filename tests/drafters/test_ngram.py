"""The drafter `ngram`: its laws against its formula, and where they come from along a tree."""

import importlib.metadata

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from talon_core.drafter import Committed, Frontier
from talon_core.table import TableTarget
from talon_core.testing import draft_trees
from talon_core.tree import TokenTree
from talon_drafters import Ngram
from talon_drafters.ngram.drafter import NgramDrafter

VOCAB = 11
TEXTS = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), min_size=1, max_size=40))
OPTIONS = st.builds(
    lambda low, more, discount, continuations: Ngram(low + more, low, discount, continuations, least=0),
    st.integers(1, 3),
    st.integers(0, 6),
    st.sampled_from([0.01, 0.5, 0.7, 0.99]),
    st.sampled_from([1, 2, 64]),
)


def drafter_of(options=None, vocab=VOCAB):
    return (options or Ngram(least=0)).open(TableTarget(np.zeros((vocab, vocab))))


def opened(text, options=None):
    """A drafter that has read a text, in slot 0."""
    drafter = drafter_of(options)
    drafter.open(0, np.array(text), 100)
    return drafter


def propose(drafter, tree, nodes=(0,), width=VOCAB, slot=0):
    frontier = Frontier(slot, tree, np.array(nodes, dtype=np.int64), width)
    return drafter.propose([frontier]).candidates[0]


def at_root(text, options=None, width=VOCAB):
    return propose(opened(text, options), TokenTree.root(text[-1]), width=width)


def likeliest_of(candidates):
    return candidates.logp[0, 0] if candidates.tokens[0, 0] >= 0 else -np.inf


@given(TEXTS, OPTIONS, st.sampled_from([0.0, 0.1, 0.5]))
def test_the_likeliest_is_what_would_be_proposed_first(text, options, least):
    drafter = opened(text, evolve(options, least=least))
    assert drafter.likeliest(0, text[-1:]) == likeliest_of(propose(drafter, TokenTree.root(text[-1]), width=1))


@given(TEXTS, OPTIONS, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_the_likeliest_behind_further_tokens_is_what_is_proposed_at_their_node(text, options, further):
    drafter = opened(text, options)
    found = drafter.likeliest(0, [text[-1], *further])
    tree = TokenTree.root(text[-1])
    for token in further:
        node = len(tree) - 1
        tree = tree.extend(np.array([token]), np.array([node]), np.array([-1.0 - node]))
    assert found == likeliest_of(propose(drafter, tree, [len(tree) - 1], width=1))
    assert drafter.likeliest(0, text[-1:]) == likeliest_of(propose(drafter, TokenTree.root(text[-1]), width=1))


FOREIGN = st.lists(st.sampled_from([0, 1, 2, 3, -1, -(2**31), VOCAB, 2**31 - 1]), min_size=1, max_size=40)


@given(
    st.one_of(TEXTS, FOREIGN),
    OPTIONS,
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.floats(-3.0, 0.0),
    st.integers(0, 8),
)
def test_what_is_likely_enough_stands_where_it_may_be_guessed(text, options, further, least, told):
    drafter, known = drafter_of(options), max(len(text) - told, 1)
    drafter.open(0, np.array(text[:known]), 100)
    drafter.guessable(0, least)
    for token in text[known:]:
        drafter.commit({0: Committed(np.array([token]), np.array([0]))})
    behind, path = drafter.guessable(0, least), [text[-1], *further]
    within = path[-1] in behind.tokens or (path[-2] << 32) + path[-1] in behind.pairs
    assert within or drafter.likeliest(0, path) < least
    assert np.all(behind.pairs[1:] > behind.pairs[:-1])
    whole = opened(text, options).guessable(0, least)
    assert (behind.tokens.tolist(), behind.pairs.tolist()) == (whole.tokens.tolist(), whole.pairs.tolist())


def test_behind_a_single_match_that_came_once_nothing_likely_is_guessed():
    drafter = opened([5, 6, 7, 8, 9, 7, 8, 4, 3, -1, 3])
    behind = drafter.guessable(0, np.log(0.5))
    assert behind.tokens.tolist() == [7]
    pairs = [(-1, 3), (4, 3), (5, 6), (6, 7), (7, 8), (8, 4), (8, 9), (9, 7)]
    assert behind.pairs.tolist() == [(before << 32) + token for before, token in pairs]
    behind = drafter.guessable(0, np.log(0.2))
    assert (behind.tokens.tolist(), len(behind.pairs)) == ([-1, 4, 5, 6, 7, 8, 9], 0)


def test_the_likeliest_behind_new_tokens_is_what_is_proposed_once_they_have_come():
    drafter = opened([5, 6, 7, 8, 9, 5, 6])
    told = drafter.likeliest(0, [6, 7, 8])
    drafter.commit({0: Committed(np.array([7, 8]), np.array([0]))})
    assert told == likeliest_of(propose(drafter, TokenTree.root(8), width=1)) > -1.0
    assert drafter.likeliest(0, [8, 10]) == -np.inf


def law_by_formula(query, text, options, vocab=VOCAB):
    """The law in the docstring of `Ngram`, from the shortest match up, by reading the text from end to end."""
    lengths_by_ends = {}
    for size in range(1, min(options.max_match, len(query)) + 1):
        ends = [end for end in range(size, len(text) + 1) if text[end - size : end] == query[-size:]]
        lengths_by_ends.setdefault(tuple(ends), []).append(size)
    law = np.full(vocab, 1 / vocab)
    for ends, sizes in lengths_by_ends.items():
        followed = [text[end] for end in ends if end < len(text)]
        if not followed or max(sizes) < options.min_match:
            continue
        discount = np.prod([1 - (1 - options.discount) * size**-0.4 for size in sizes])
        own = np.zeros(vocab)
        for token in list(dict.fromkeys(reversed(followed)))[: options.continuations]:
            own[token] = (followed.count(token) - discount) / len(followed)
        law = own + (1 - own.sum()) * law
    return law


def tree_of(nodes, path_logp=-0.5):
    """The tree of `[(token, parent), ...]`."""
    tokens, parents = zip(*nodes, strict=True)
    return TokenTree(tokens, parents, [0.0] + [path_logp] * (len(tokens) - 1))


@given(TEXTS, OPTIONS)
def test_the_law_is_the_formula_s(text, options):
    candidates = at_root(text, options)
    np.testing.assert_allclose(candidates.law(0), law_by_formula(text, text, options), rtol=1e-9)


@given(TEXTS, draft_trees(vocab_size=5), OPTIONS)
def test_along_a_tree_the_path_is_read_after_the_text(text, tree, options):
    text = [*text, int(tree.tokens[0])]
    drafter = opened(text, options)
    for depth in range(int(tree.depths.max()) + 1):
        frontier = np.flatnonzero(tree.depths == depth)
        candidates = propose(drafter, tree, nodes=frontier)
        for row, node in enumerate(frontier):
            query = text + tree.tokens[tree.path(node)][1:].tolist()
            np.testing.assert_allclose(candidates.law(row), law_by_formula(query, text, options), rtol=1e-9)


@given(TEXTS, st.integers(1, 12), OPTIONS)
def test_candidates_are_the_law_s_best_in_order(text, width, options):
    candidates = at_root(text, options, width)
    law = candidates.law(0)
    assert law.shape == (VOCAB,)
    assert law.sum() == pytest.approx(1)
    assert law.min() > 0
    assert candidates.width <= width
    real = candidates.tokens[0] >= 0
    tokens, logp = candidates.tokens[0][real], candidates.logp[0][real]
    assert len(set(tokens.tolist())) == len(tokens)
    np.testing.assert_allclose(np.exp(logp), law[tokens], rtol=1e-9)
    assert (np.diff(logp) <= 0).all()
    others = np.delete(law, tokens)
    assert not len(others) or not len(tokens) or others.max() <= law[tokens[-1]] * (1 + 1e-9)


@given(TEXTS, OPTIONS)
def test_what_is_looked_up_is_the_law_without_what_is_spread_evenly(text, options):
    drafter, tree = opened(text, options), TokenTree.root(text[-1])
    (shares,) = drafter.look_up(Frontier(0, tree, np.array([0]), 1))
    law = np.full(VOCAB, (1 - sum(shares.values())) / VOCAB)
    law[list(shares)] += list(shares.values())
    np.testing.assert_allclose(propose(drafter, tree).law(0), law, rtol=1e-9, atol=1e-15)  # 1 - sum(shares) is rounded
    assert all(share > 0 for share in shares.values())


@given(TEXTS, st.data(), OPTIONS)
def test_committing_is_as_good_as_a_new_prompt(text, data, options):
    cut = data.draw(st.integers(1, len(text)))
    drafter = opened(text[:cut], options)
    propose(drafter, TokenTree.root(text[cut - 1]))
    if cut < len(text):
        drafter.commit({0: Committed(np.array(text[cut:]), np.array([0]))})
    candidates = propose(drafter, TokenTree.root(text[-1]))
    fresh = at_root(text, options)
    assert (candidates.tokens == fresh.tokens).all()
    assert (candidates.logp == fresh.logp).all()


def test_the_longest_match_comes_first():
    text = [1, 2, 3, 7, 0, 3, 4, 0, 3, 4, 0, 1, 2, 3]  # 3 goes on with 4 twice, but 1 2 3 goes on with 7
    candidates = at_root(text)
    assert candidates.tokens[0, :2].tolist() == [7, 4]


def test_of_equal_evidence_the_latest_comes_first():
    assert at_root([3, 4, 3, 5, 3, 6, 3]).tokens[0].tolist() == [6, 5, 4]


def test_evidence_grows_with_length_and_number():
    text = list(range(10))
    by_length = [np.exp(at_root([*text, 10, *text[9 - size : 9]]).logp[0, 0]) for size in range(1, 10)]
    assert by_length == sorted(by_length)
    assert by_length[0] == pytest.approx(0.3, abs=0.1)
    one = Ngram(max_match=1, least=0)
    by_number = [np.exp(at_root([3, 4] * number + [3], one).logp[0, 0]) for number in range(1, 6)]
    assert by_number == sorted(by_number)


@given(st.lists(st.integers(0, 10), min_size=2, max_size=10, unique=True), st.integers(1, 5))
def test_a_chain_is_prompt_lookup(text, read_again):
    """All tokens differ, so the match is unique; its continuation is what the greedy chain follows."""
    read_again = min(read_again, len(text))
    drafter = opened([*text, *text[:read_again]])
    tree, chain = TokenTree.root(text[read_again - 1]), []
    for node in range(len(text)):
        candidates = propose(drafter, tree, nodes=[node], width=1)
        chain.append(int(candidates.tokens[0, 0]))
        tree = tree.extend(candidates.tokens[0], np.array([node]), candidates.path_logp[0])
    assert chain == [*text, *text][read_again : read_again + len(text)]
    assert (np.diff(tree.path_logp) < 0).all()


def test_siblings_go_their_own_ways():
    text = [1, 2, 5, 0, 1, 3, 6, 0, 1]
    tree = tree_of([(1, -1), (2, 0), (3, 0)])
    drafter = opened(text)
    propose(drafter, tree)
    candidates = propose(drafter, tree, nodes=[2, 1])
    assert candidates.tokens[:, 0].tolist() == [6, 5]
    np.testing.assert_allclose(candidates.path_logp, candidates.logp - 0.5)
    assert candidates.frontier.tolist() == [2, 1]
    assert candidates.law(0).argmax() == 6


def test_a_node_whose_parent_was_never_drafted_from_is_found_as_well():
    tree = tree_of([(1, -1), (2, 0), (5, 1)])
    candidates = propose(opened([1, 2, 5, 4, 1]), tree, nodes=[2])
    assert candidates.tokens[0, 0] == 4


def test_a_new_tree_forgets_the_old_one_even_if_nothing_was_committed():
    drafter = opened([1, 2, 5, 0, 1, 3, 6, 0, 1])
    for token, then in [(2, 5), (3, 6)]:
        propose(drafter, TokenTree.root(1))
        candidates = propose(drafter, tree_of([(1, -1), (token, 0)]), nodes=[1])
        assert candidates.tokens[0, 0] == then


@pytest.mark.parametrize("text", [[4], [4, 5], [1, 2, 3, 4]], ids=str)
def test_nothing_known_is_all_padding(text):
    candidates = at_root(text)
    assert (candidates.tokens == -1).all()
    assert (candidates.logp == -np.inf).all()
    assert (candidates.path_logp == -np.inf).all()
    assert candidates.width >= 1
    assert len(candidates.best(5)) == 0
    np.testing.assert_allclose(candidates.law(0), np.full(VOCAB, 1 / VOCAB))


def test_rows_that_know_less_are_padded():
    candidates = propose(opened([3, 4, 3, 5, 3, 6, 3]), tree_of([(3, -1), (4, 0), (9, 0)]), nodes=[0, 1, 2])
    assert (candidates.tokens >= 0).sum(axis=1).tolist() == [3, 1, 0]
    assert (np.isneginf(candidates.logp) == (candidates.tokens == -1)).all()
    assert candidates.width == 3


def test_all_equal_tokens_are_soon_certain():
    candidates = at_root([VOCAB - 1] * 500)
    assert candidates.tokens.tolist() == [[VOCAB - 1]]
    assert candidates.logp[0, 0] == pytest.approx(0, abs=1e-3)
    assert candidates.logp[0, 0] <= 0


def test_matches_shorter_than_the_shortest_are_not_used():
    text = [1, 2, 0, 5, 2]
    assert at_root(text, Ngram(min_match=1, least=0)).tokens.tolist() == [[0]]
    assert at_root(text, Ngram(min_match=2, least=0)).tokens.tolist() == [[-1]]


@given(st.lists(st.sampled_from([-1, 0, 1, VOCAB - 1, VOCAB, 10**6]), min_size=1, max_size=30))
def test_tokens_outside_the_vocabulary_are_never_proposed(text):
    candidates = at_root(text)
    real = candidates.tokens[candidates.logp > -np.inf]
    assert ((real >= 0) & (real < VOCAB)).all()
    assert candidates.law(0).sum() == pytest.approx(1)


@given(st.lists(TEXTS, min_size=2, max_size=3), st.permutations([0, 3, 8]))
def test_sequences_know_nothing_of_each_other(texts, slots):
    drafter = drafter_of()
    for slot, text in zip(slots, texts, strict=False):
        drafter.open(slot, np.array(text), 100)
    asked = zip(slots, texts, strict=False)
    together = drafter.propose([Frontier(slot, TokenTree.root(text[-1]), np.array([0]), VOCAB) for slot, text in asked])
    assert together.draft_passes == 0
    for candidates, text in zip(together.candidates, texts, strict=True):
        assert candidates == at_root(text)


def test_each_sequence_gets_the_laws_it_gets_alone_whoever_comes_and_goes(shared):
    shared.check_turns(drafter_of(vocab=3), lambda ids: None, 3, rtol=1e-12, full=False)


def test_a_slot_that_is_opened_again_forgets_the_old_text():
    drafter = opened([1, 2, 1])
    drafter.open(0, np.array([1]), 100)
    assert propose(drafter, TokenTree.root(1)).tokens.tolist() == [[-1]]


def test_a_slot_that_was_closed_keeps_nothing():
    drafter = opened([1, 2, 1])
    drafter.close(0)
    assert not drafter._texts


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_match": 0}, "max_match"),
        ({"max_match": 257}, "max_match"),
        ({"min_match": 0}, "min_match"),
        ({"min_match": 5, "max_match": 4}, "min_match must be at most max_match, 4, not 5"),
        ({"discount": 0.0}, "discount"),
        ({"discount": 1.0}, "discount"),
        ({"continuations": 0}, "continuations"),
    ],
    ids=str,
)
def test_senseless_options_are_refused_by_name(options, says):
    with pytest.raises(ValueError, match=says):
        Ngram(**options)


def test_extreme_options_keep_the_law_finite():
    for discount in (1e-9, 1 - 1e-9):
        text = [1, 2, 3, 4] * 200
        law = at_root(text, Ngram(max_match=256, discount=discount)).law(0)
        assert np.isfinite(law).all()
        assert law.sum() == pytest.approx(1)
        assert law.argmax() == 1


def test_it_is_found_through_its_entry_point():
    (entry,) = [e for e in importlib.metadata.entry_points(group="talon") if e.name == "talon-drafters"]
    assert Ngram in entry.load().talon_drafters()


def test_it_needs_no_model():
    drafter = opened([1])
    assert isinstance(drafter, NgramDrafter)
    assert (drafter.max_depth, Ngram().features(12)) == (None, ())


def test_unlikely_continuations_are_not_offered_but_stay_in_the_law():
    text = [1, 2, 1, 3, 1, 4, 1]
    everything, likely = at_root(text, Ngram(least=0)), at_root(text, Ngram(least=0.25))
    assert set(everything.tokens[0].tolist()) == {2, 3, 4}
    assert likely.tokens.tolist() == [[-1]]
    assert np.array_equal(likely.law(0), everything.law(0))
    sure = at_root([5, 6, 7, 8, 5, 6, 7], Ngram(least=0.25))
    assert sure.tokens.tolist() == [[8]]
    assert sure.logp[0, 0] >= np.log(0.25)
