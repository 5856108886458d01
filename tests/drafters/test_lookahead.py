"""The drafter `lookahead`: its window and pool by hand and by definition, and what the target's answers bring."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core import Engine, Inquirer, Request, TableTarget
from talon_core.certify.exact import Given
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Committed, Frontier
from talon_core.plugins.parts import Parts
from talon_core.trace.observed import Notebook, Observing
from talon_core.tree import TokenTree
from talon_drafters import HybridSpec, Lookahead
from talon_drafters.lookahead.drafter import LookaheadDrafter
from talon_drafters.lookahead.pool import Pool
from talon_drafters.lookahead.window import Window, first_guesses, most_nodes
from talon_strategies import Match, Talon
from talon_tests.random_drafters import random_target

VOCAB = 6
SIZES = st.tuples(st.integers(1, 5), st.integers(3, 6))
"""Columns and tokens of an n-gram."""


def test_a_window_by_hand() -> None:
    """Two columns, n-grams of four tokens, so three levels; the guesses are 1 2 3, and the root is 0."""
    window = Window(2, 4, [1, 2, 3])
    assert window.paths() == [[1], [1, 2], [1, 2, 3]]
    assert window.advance(0, [10, 20, 30]) == []
    assert window.levels == [[2, 3], [10, 20, 30]]
    assert window.paths() == [[10], [2, 20], [2, 3, 30]]
    assert window.advance(1, [11, 21, 31]) == []
    assert window.levels == [[3], [20, 30], [21, 31]]
    assert window.paths() == [[20, 21], [3, 30, 31]]
    assert window.advance(2, [22, 32]) == [(2, [20, 21, 22]), (3, [30, 31, 32])]
    assert window.levels == [[30], [21, 31], [22, 32]]
    assert window.paths() == [[21, 22], [30, 31, 32]]
    assert window.advance(21, [23, 33]) == [(21, [21, 22, 23]), (30, [31, 32, 33])]


@given(SIZES, st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_windows_are_as_wide_and_deep_as_is_said(sizes: tuple[int, int], passes: int, seed: int) -> None:
    columns, ngram = sizes
    rng = np.random.default_rng(seed)
    window = Window(columns, ngram, rng.integers(0, 99, first_guesses(*sizes)).tolist())
    for done in range(passes):
        paths = window.paths()
        assert max(map(len, paths)) == first_guesses(*sizes)
        nodes = {tuple(path[: end + 1]) for path in paths for end in range(len(path))}
        assert len(nodes) <= most_nodes(*sizes)
        full = done >= ngram - 2
        assert not full or len(paths) == columns
        assert not full or sum(map(len, window.levels)) == (columns - 1) + (ngram - 2) * columns
        made = window.advance(-1, rng.integers(0, 99, len(paths)).tolist())
        assert len(made) == (columns if full else 0)
        assert all(len(others) == ngram - 1 for _, others in made)


@given(SIZES)
def test_no_window_has_more_nodes_than_is_said_and_one_has_as_many(sizes: tuple[int, int]) -> None:
    window = Window(*sizes, [*range(first_guesses(*sizes))])
    most, next_token = 0, 1000
    for _ in range(sizes[1] + 2):
        paths = window.paths()
        most = max(most, len({tuple(path[: end + 1]) for path in paths for end in range(len(path))}))
        window.advance(-1, [*range(next_token, next_token + len(paths))])
        next_token += len(paths)
    assert most == most_nodes(*sizes)


@given(SIZES, st.integers(0, 2**32 - 1))
def test_the_ngrams_are_the_targets_best_tokens_one_after_the_other(sizes: tuple[int, int], seed: int) -> None:
    """Where the target's best token hangs on the last one alone, an n-gram is a walk along it, whatever was guessed."""
    rng = np.random.default_rng(seed)
    best = rng.integers(0, VOCAB, VOCAB).tolist()
    window = Window(*sizes, rng.integers(0, VOCAB, first_guesses(*sizes)).tolist())
    root, made = 0, []
    for _ in range(3 * sizes[1]):
        new = window.advance(root, [best[path[-1]] for path in window.paths()])
        root = best[root]
        made.append(new)
    for new in made[sizes[1] :]:  # by now no level holds what was guessed
        for _, others in new:
            assert [best[token] for token in others[:-1]] == others[1:]
    assert any(made)


NGRAMS = st.lists(st.tuples(st.integers(0, 2), st.tuples(*[st.integers(0, 3)] * 2)), max_size=30)


@given(NGRAMS, st.integers(1, 4))
def test_the_pool_keeps_the_newest_ngrams_of_each_first_token(ngrams: Any, guesses: int) -> None:
    pool = Pool(Lookahead(ngram=3, guesses=guesses, text=False), VOCAB)
    for first, others in ngrams:
        pool.add(first, others)
    for first in range(3):
        newest = [*dict.fromkeys(others for one, others in reversed(ngrams) if one == first)][:guesses]
        pool.append(np.array([first]))
        trie = pool.find()
        assert trie.counts[0] == len(newest)
        for path in {others[:size] for others in newest for size in (1, 2)}:
            node = trie.after(path)
            assert node is not None
            assert trie.counts[node] == sum(others[: len(path)] == path for others in newest)
        for children in trie.children:
            counts = [trie.counts[child] for child in children.values()]
            assert counts == sorted(counts, reverse=True)


def test_of_ngrams_that_go_on_equally_often_the_newest_comes_first() -> None:
    pool = Pool(Lookahead(ngram=3, guesses=4, text=False), VOCAB)
    for others in ([1, 2], [3, 4], [5, 0], [3, 1], [1, 2]):
        pool.add(0, others)
    pool.append(np.array([0]))
    trie = pool.find()
    assert [*trie.children[0]] == [3, 1, 5]  # 3 twice; then 1, which was added again after 5
    assert [trie.counts[child] for child in trie.children[0].values()] == [2, 1, 1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 30))
def test_the_pool_of_a_text_has_its_ngrams(text: list[int], guesses: int, cut: int) -> None:
    options = Lookahead(window=0, ngram=3, guesses=guesses)
    drafter = options.open(TableTarget(np.zeros((VOCAB, VOCAB))))
    assert not isinstance(drafter, Inquirer)
    drafter.open(0, np.array(text[:cut]), 100)
    if text[cut:]:
        drafter.commit({0: Committed(np.array(text[cut:]), np.array([0]))})
    (candidates,) = drafter.propose([Frontier(0, TokenTree.root(text[-1]), np.array([0]), 4)]).candidates
    found = [tuple(text[at + 1 : at + 3]) for at in range(len(text) - 2) if text[at] == text[-1]]
    newest = [*dict.fromkeys(reversed(found))][:guesses]
    law = np.zeros(VOCAB)
    for others in newest:
        law[others[0]] += 1 / len(newest)
    if newest:
        assert np.allclose(candidates.law(0), law)
        assert sorted(candidates.tokens[0][candidates.tokens[0] >= 0].tolist()) == np.flatnonzero(law).tolist()
    else:
        assert candidates.tokens.max() < 0


@pytest.mark.parametrize("foreign", [-1, VOCAB, 10**6])
def test_tokens_outside_the_vocabulary_are_neither_offered_nor_asked_about(foreign: int) -> None:
    drafter = Lookahead(window=3, ngram=3).open(TableTarget(np.zeros((VOCAB, VOCAB))))
    assert isinstance(drafter, LookaheadDrafter)
    drafter.open(0, np.array([1, foreign, 2, 1, foreign, foreign, 1]), 100)
    (candidates,) = drafter.propose([Frontier(0, TokenTree.root(1), np.array([0]), 4)]).candidates
    assert candidates.tokens.max() < 0
    asked = drafter.inquire(0, TokenTree.root(1), 9)
    assert asked is not None
    assert {1, 2} >= {*asked.tokens.tolist()}
    drafter.open(0, np.array([foreign]), 100)
    asked = drafter.inquire(0, TokenTree.root(foreign), 9)
    assert asked is not None
    assert {*asked.tokens.tolist()} == {0}


def opened(prompt: list[int], **options: Any) -> LookaheadDrafter:
    drafter = Lookahead(**options).open(TableTarget(np.zeros((VOCAB, VOCAB))))
    assert isinstance(drafter, LookaheadDrafter)
    drafter.open(0, np.array(prompt), 100)
    return drafter


@given(SIZES, st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_what_is_asked_are_the_windows_paths_and_no_node_twice(
    sizes: tuple[int, int], prompt: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drafter = opened(prompt, window=sizes[0], ngram=sizes[1])
    root = prompt[-1]
    for _ in range(sizes[1] + 2):
        tree = TokenTree.root(root)
        for _ in range(5):
            parent, token = int(rng.integers(len(tree))), int(rng.integers(3))
            if tree.child(parent, token) is None:
                tree = tree.extend(np.array([token]), np.array([parent]), np.zeros(1))
        asked = drafter.inquire(0, tree, first_guesses(*sizes))
        assert asked is not None
        assert len(asked.tokens) <= drafter.most_added
        whole = tree.extend(asked.tokens, asked.parents, np.zeros(len(asked.tokens)))
        paths = [tuple(whole.tokens[whole.path(node)[1:]].tolist()) for node in range(len(whole))]
        assert len({*paths}) == len(paths)
        window = drafter._windows[0].paths()
        assert [paths[node] for node in asked.nodes.tolist()] == [tuple(path) for path in window]
        root = int(rng.integers(3))
        drafter.commit({0: Committed(np.array([root]), np.array([0]), None, rng.integers(0, 3, len(window)))})


def test_nothing_is_asked_that_the_text_will_not_reach() -> None:
    drafter = opened([1, 2, 3], window=4, ngram=4)
    assert first_guesses(4, 4) == 5
    assert drafter.inquire(0, TokenTree.root(3), 5) is not None
    assert drafter.inquire(0, TokenTree.root(3), 4) is None


def test_a_window_without_answers_stays_as_it_is() -> None:
    drafter = opened([1, 2, 3], window=2, ngram=3)
    before = drafter._windows[0].levels
    drafter.commit({0: Committed(np.array([1, 2]), np.array([0, 1]))})
    assert drafter._windows[0].levels == before


def test_the_window_of_a_prompt_is_always_the_same() -> None:
    windows = [opened([1, 4, 2, 5], window=5, ngram=5)._windows[0].levels for _ in range(2)]
    assert windows[0] == windows[1]
    assert {1, 4, 2, 5} >= {*windows[0][0]}


BEST = [3, 5, 0, 1, 2, 4]
CYCLE = TableTarget(np.eye(VOCAB)[BEST] * 9)
"""After each token comes one certain other: 0 3 1 5 4 2 0 and so on."""


def test_by_hand_the_window_alone_finds_what_a_text_has_never_said() -> None:
    """From 0 on the target writes 3 1 5 4 2 0 ..; all guesses are 0, as that is all the prompt has.

    Two columns, n-grams of three tokens. Pass 1 runs the guesses 0 0 and gets 3 3, pass 2 runs 0 | 3 3 and gets 1 1, so
    the pool has (3: 3 1), as the root is 3 then, and (0: 3 1). So, when 0 is the root again, after six tokens, 3 1 is
    offered; before that come (3: 1 5), (1: 5 4), and so on, one or more in each pass.
    """
    drafter = Lookahead(window=2, ngram=3, guesses=2, text=False)
    engine = Engine(CYCLE, Match(), Talon(budget=9, top_k=3), drafter.open(CYCLE))
    sequence = engine.submit(Request(np.array([0]), 24))
    engine.step()
    engine.step()
    assert sequence.token_ids == [3, 1]
    opened: Any = engine.parts.drafter
    window = opened._windows[0]
    assert window.levels == [[3], [1, 1]]
    assert opened._slots[0].text._after == {3: {(3, 1): None}, 0: {(3, 1): None}}
    while not sequence.finished:
        engine.step()
    assert sequence.token_ids == ([3, 1, 5, 4, 2, 0] * 4)[:24]
    assert max(one.accepted for one in sequence.rounds) == 2
    assert [one.inquired for one in sequence.rounds][:2] == [2, 3]


@pytest.mark.parametrize("options", ["window=3,ngram=4,guesses=3", "window=2,ngram=3,text=false"])
@pytest.mark.parametrize("attention", ["sdpa", "reference"])
def test_on_a_model_the_window_brings_tokens_and_changes_none(options: str, attention: str) -> None:
    model = random_target()
    parts = Parts(f"lookahead:{options}", "talon:budget=8,top_k=3", attention=attention)
    decoder = decoder_for_model(model, None, parts)
    request = Request(np.array([0, 2, 1, 0, 2]), 40)
    plain = decoder_for_model(model, None, Parts(policy=None)).run_all([Request(request.ids, 40)])[0]
    (result,) = decoder.run_all([request])
    assert result.token_ids == plain.token_ids
    assert result.stats.target_passes < 35
    assert max(one.inquired for one in result.rounds) > 0


def test_a_trace_of_its_window_is_refused_and_one_of_its_pool_is_not() -> None:
    with pytest.raises(ValueError, match="drafter 'lookahead' with these options asks the target beside every tree"):
        Observing(Lookahead(), Notebook()).open(CYCLE)
    assert Observing(Lookahead(window=0), Notebook()).open(CYCLE).max_depth == 2
    assert Lookahead(window=0).reads_texts
    assert not Lookahead().reads_texts


def test_hybrid_takes_the_pool_and_refuses_the_window() -> None:
    with pytest.raises(ValueError, match="'lookahead' asks the target beside its trees"):
        HybridSpec("lookahead+ngram").open(CYCLE)
    spec = HybridSpec("lookahead[window=0]+ngram")
    (result,) = Decoder(CYCLE, Match(), Talon(budget=6), Given(spec.open(CYCLE))).run_all([Request(np.array([0]), 30)])
    assert result.stats.target_passes < 20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": -1}, "window"),
        ({"window": 65}, "window"),
        ({"ngram": 2}, "ngram"),
        ({"guesses": 0}, "guesses"),
        ({"text": "yes"}, "text"),
        ({"window": 0, "text": False}, "window is 0 and text is false"),
    ],
)
def test_senseless_options_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        Lookahead(**options)
