"""What the drafter `ngram` costs: it should not depend on the length of the text. Times are recorded, not asserted."""

import itertools

import numpy as np
import pytest

from talon_core.drafter import Committed, Frontier
from talon_core.tree import TokenTree
from talon_drafters import Ngram
from talon_drafters.ngram.drafter import NgramDrafter

VOCAB = 49152
LENGTHS = [1000, 4000, 16000]
ROUNDS = 200


def phrases(generator, length):
    """Text like people's: phrases of Zipf-distributed words, said again and again."""
    words = generator.zipf(1.3, 20 * length) % VOCAB
    phrases = np.split(words, np.cumsum(generator.integers(2, 12, length)))[:length]
    chosen = generator.zipf(1.2, length) % len(phrases)
    return np.concatenate([phrases[phrase] for phrase in chosen])[:length]


TEXTS = {
    "phrases": phrases,
    "equal": lambda generator, length: np.full(length, 7),
    "coins": lambda generator, length: generator.integers(0, 2, length),
}


def text_of(kind, length):
    return TEXTS[kind](np.random.default_rng(0), length)


def opened(text):
    drafter = NgramDrafter(Ngram(), VOCAB)
    drafter.open(0, text, 2 * len(text))
    return drafter


def propose(drafter, tree, frontier):
    return drafter.propose([Frontier(0, tree, frontier, 10)]).candidates[0]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", TEXTS)
def test_open(benchmark, kind, length):
    text = text_of(kind, length)
    benchmark.pedantic(opened, args=(text,), rounds=7, warmup_rounds=1)
    benchmark.extra_info.update(tokens=length)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", TEXTS)
def test_commit_of_one_token(benchmark, kind, length):
    text = text_of(kind, length + ROUNDS)
    drafter = opened(text[:length])
    tokens = itertools.cycle([Committed(text[i : i + 1], np.array([0])) for i in range(length, len(text))])
    benchmark.pedantic(lambda: drafter.commit({0: next(tokens)}), rounds=ROUNDS)
    benchmark.extra_info.update(tokens=length)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", TEXTS)
def test_propose_of_one_layer(benchmark, kind, length):
    """The second layer of a tree with the ten most likely first tokens; every time the text is one token longer."""
    text = text_of(kind, length + 10 * ROUNDS)
    drafter = opened(text[:length])
    rest = iter(text[length:])
    sizes = []

    def second_layer():
        best = ()
        while not len(best):  # go on in the text until something matches
            token = next(rest)
            drafter.commit({0: Committed(np.array([token]), np.array([0]))})
            tree = TokenTree.root(token)
            first = propose(drafter, tree, np.array([0]))
            best = first.best(10)
        tree = tree.extend(first.tokens.ravel()[best], first.parents(best), first.path_logp.ravel()[best])
        sizes.append(len(best))
        return (drafter, tree, np.arange(1, len(tree))), {}

    benchmark.pedantic(propose, setup=second_layer, rounds=ROUNDS)
    benchmark.extra_info.update(tokens=length, mean_nodes=float(np.mean(sizes)))
