"""The suffix automaton against reading the text from end to end."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talon_drafters.ngram.suffix_automaton import Context, SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), max_size=40))
MAX_MATCHES = st.integers(1, 8) | st.just(64)


def automaton_of(text, max_match):
    automaton = SuffixAutomaton(max_match)
    automaton.extend(text)
    return automaton


def ends_of(string, text):
    """The places after which `string` has just been read."""
    size = len(string)
    return {end for end in range(size, len(text) + 1) if text[end - size : end] == string}


def longest_match(query, text, max_match, usable=lambda ends: True):
    """Length of the longest suffix of `query`, of at most `max_match` tokens, that occurs in `text`."""
    sizes = range(min(max_match, len(query)), 0, -1)
    return next((size for size in sizes if usable(ends_of(query[-size:], text))), 0)


def levels_by_reading(query, text, max_match):
    """What `levels` must say: matched, shorter, total, and how often each token followed, latest last."""
    by_ends = {}
    for size in range(min(max_match, len(query)), 0, -1):
        ends = frozenset(ends_of(query[-size:], text))
        by_ends.setdefault(ends, []).append(size)
    levels = []
    for ends, sizes in by_ends.items():
        followed = [text[end] for end in sorted(ends) if end < len(text)]
        if followed:
            recent = list(dict.fromkeys(reversed(followed)))[::-1]
            counts = {token: followed.count(token) for token in recent}
            levels.append((max(sizes), min(sizes) - 1, len(followed), list(counts.items())))
    return levels


def levels_of(automaton, context):
    return [
        (level.matched, level.shorter, level.total, [(t, automaton.count(s)) for t, s in level.following.items()])
        for level in automaton.levels(context)
    ]


def read(automaton, tokens):
    context = Context(0, 0)
    for token in tokens:
        context = automaton.follow(context, token)
    return context


@given(TEXTS, st.integers(0, 60))
def test_exactly_the_substrings_of_the_text_are_matched_in_full(text, choice):
    automaton = automaton_of(text, max_match=64)
    substrings = {tuple(text[i:j]) for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    for string in substrings:
        assert read(automaton, string).matched == len(string)
    other = (*text[choice % (len(text) + 1) :], *text[: choice % (len(text) + 1)], choice % 4)
    assert (read(automaton, other).matched == len(other)) == (other in substrings)


@given(TEXTS, st.lists(st.integers(0, 4), max_size=20), MAX_MATCHES)
@example(text=[0] * 30, query=[0] * 12, max_match=4)
def test_levels_are_what_reading_the_text_finds_after_any_query(text, query, max_match):
    automaton = automaton_of(text, max_match)
    context = Context(0, 0)
    for read_so_far in range(1, len(query) + 1):
        context = automaton.follow(context, query[read_so_far - 1])
        seen = query[:read_so_far]
        # the automaton remembers no more than it matched, so that a query longer than a match needs no more
        assert context.matched == longest_match(seen, text, max_match, bool)
        assert levels_of(automaton, context) == levels_by_reading(seen[len(seen) - context.matched :], text, max_match)


@given(TEXTS, MAX_MATCHES)
@example(text=[0] * 40, max_match=3)
@example(text=[0, 1] * 20, max_match=5)
def test_the_text_s_own_end_finds_its_earlier_places(text, max_match):
    automaton = automaton_of(text, max_match)
    context = automaton.context()
    assert context.matched == longest_match(text, text, max_match, lambda ends: ends != {len(text)} and bool(ends))
    assert levels_of(automaton, context) == levels_by_reading(text, text, max_match)


@given(TEXTS, st.data(), MAX_MATCHES)
def test_a_text_that_grew_is_as_good_as_one_given_at_once(text, data, max_match):
    grown = SuffixAutomaton(max_match)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        grown.extend(text[start:end])
        grown.levels(grown.context())  # looking changes nothing
    whole = automaton_of(text, max_match)
    assert vars(grown) == vars(whole)
    assert len(grown) == len(text)


@given(TEXTS, TEXTS, MAX_MATCHES)
def test_a_context_goes_on_where_the_text_s_end_left_off(text, path, max_match):
    automaton = automaton_of(text, max_match)
    context = automaton.context()
    for depth, token in enumerate(path, start=1):
        context = automaton.follow(context, token)
        assert context == read(automaton, [*text, *path[:depth]])


@given(TEXTS, MAX_MATCHES)
def test_levels_come_longest_first_and_each_covers_its_own_lengths(text, max_match):
    automaton = automaton_of(text, max_match)
    levels = automaton.levels(automaton.context())
    for level in levels:
        assert 0 <= level.shorter < level.matched <= max_match
    for longer, shorter in pairwise(levels):
        assert longer.shorter >= shorter.matched
        assert longer.total <= shorter.total


@given(TEXTS)
def test_there_are_at_most_two_states_a_token(text):
    assert len(automaton_of(text, max_match=4)._link) <= max(2 * len(text), 1)


def test_an_empty_text_matches_nothing():
    automaton = SuffixAutomaton(3)
    assert len(automaton) == 0
    assert automaton.context() == (0, 0)
    assert automaton.follow(automaton.context(), 7) == (0, 0)
    assert automaton.levels(automaton.context()) == []


@pytest.mark.parametrize("text", [[0] * 3000, [0, 1] * 1500, list(range(3000))], ids=["equal", "two", "different"])
def test_counts_of_a_long_text_cost_at_most_the_longest_match(text):
    automaton = automaton_of(text, max_match=7)
    context = read(automaton, text[:200])
    assert context.matched == 7
    assert len(automaton.levels(context)) <= 7
    assert automaton.count(context.state) == len(ends_of(text[193:200], text))
