"""The drafter `pld`: the continuation that prompt lookup proposes, by another's code and by its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from talon_core.drafter import Committed, Frontier
from talon_core.table import TableTarget
from talon_core.tree import TokenTree
from talon_drafters import Pld

VOCAB = 6
TEXTS = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), min_size=1, max_size=40))
OPTIONS = st.builds(
    lambda shortest, more, length, last: Pld(shortest + more, shortest, length, last),
    *(st.integers(1, 2), st.integers(0, 3), st.integers(1, 12), st.booleans()),
)


def chain(drafter, root):
    """What is proposed: the best candidate of each node of a chain, as far as it goes; each is certain."""
    tree, found = TokenTree.root(root), []
    while True:
        (candidates,) = drafter.propose([Frontier(0, tree, np.array([len(tree) - 1]), 3)]).candidates
        if candidates.tokens[0, 0] < 0:
            return found
        assert candidates.width == 1
        assert candidates.logp.tolist() == [[0.0]]
        assert candidates.law(0)[candidates.tokens[0, 0]] == 1
        found.append(int(candidates.tokens[0, 0]))
        tree = tree.extend(candidates.tokens[0], np.array([len(tree) - 1]), candidates.path_logp[0])


def proposed(text, options):
    drafter = options.open(TableTarget(np.zeros((VOCAB, VOCAB))))
    drafter.open(0, np.array(text), 100)
    return chain(drafter, text[-1])


def by_definition(text, options):
    for size in range(min(options.longest, len(text) - 1), options.shortest - 1, -1):
        places = [at + size for at in range(len(text) - size) if text[at : at + size] == text[-size:]]
        if places:
            place = places[-1 if options.last else 0]
            return text[place : place + options.length]
    return []


@given(TEXTS, OPTIONS)
def test_the_continuation_is_that_of_the_first_or_last_place_of_the_most_tokens(text, options):
    assert proposed(text, options) == by_definition(text, options)


@given(TEXTS, st.integers(1, 4), st.integers(1, 12))
def test_it_is_what_transformers_proposes(text, longest, length):
    theirs = PromptLookupCandidateGenerator(None, length, longest, max_length=1000)
    ids, _ = theirs.get_candidates(torch.tensor([text]))
    assert proposed(text, Pld(longest=longest, length=length)) == ids[0, len(text) :].tolist()


@given(TEXTS, st.data(), OPTIONS)
def test_committing_is_as_good_as_a_new_prompt(text, data, options):
    cut = data.draw(st.integers(1, len(text)))
    drafter = options.open(TableTarget(np.zeros((VOCAB, VOCAB))))
    drafter.open(0, np.array(text[:cut]), 100)
    chain(drafter, text[cut - 1])
    if cut < len(text):
        drafter.commit({0: Committed(np.array(text[cut:]), np.array([0]))})
    assert chain(drafter, text[-1]) == by_definition(text, options)


def test_the_published_settings_are_the_defaults():
    assert (Pld().longest, Pld().shortest, Pld().length, Pld().last) == (3, 1, 10, False)
    drafter = Pld().open(TableTarget(np.zeros((VOCAB, VOCAB))))
    assert drafter.max_depth == 10


@pytest.mark.parametrize("foreign", [-1, VOCAB, 10**6])
def test_tokens_outside_the_vocabulary_are_never_proposed(foreign):
    assert proposed([1, 2, foreign, 3, 1], Pld()) == [2]
    assert proposed([1, foreign, 1], Pld()) == []
    assert proposed([foreign, 4, foreign], Pld()) == [4]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"longest": 0}, "longest"),
        ({"longest": 65}, "longest"),
        ({"shortest": 0}, "shortest"),
        ({"shortest": 4}, "shortest must be at most longest, 3, not 4"),
        ({"length": 0}, "length"),
        ({"last": 1}, "last"),
    ],
    ids=str,
)
def test_senseless_options_are_refused_by_name(options, says):
    with pytest.raises((ValueError, TypeError), match=says):
        Pld(**options)
