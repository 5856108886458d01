"""What an index costs to make, and the drafter `datastore` to ask. Times are recorded, not asserted."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from talon_core.drafter import Frontier
from talon_core.engine.text_target import TextTarget
from talon_core.retrieval import IndexedVocabulary, Piece, TokenIndex, write_index
from talon_core.tree import TokenTree
from talon_drafters import Datastore

VOCAB = 49152
DOCUMENT = 250
ROUNDS = 300


@pytest.fixture(scope="module")
def documents(request: pytest.FixtureRequest) -> list[np.ndarray]:
    """Phrases of Zipf-distributed words, said again and again; six million tokens where times are taken."""
    length = 6_000_000 if request.config.getoption("benchmark_enable") else 20_000
    generator = np.random.default_rng(0)
    words = generator.zipf(1.3, length // 4) % VOCAB
    phrases = np.split(words, np.cumsum(generator.integers(2, 24, length // 40)))
    chosen = generator.zipf(1.2, length // 4) % len(phrases)
    text = np.concatenate([phrases[phrase] for phrase in chosen])[:length]
    return np.split(text, range(DOCUMENT, len(text), DOCUMENT))


@pytest.fixture(scope="module", params=[1, 8], ids="{} shards".format)
def shards(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def made(out: Path, documents: list[np.ndarray], shards: int) -> TokenIndex:
    tokens = sum(len(text) + 1 for text in documents)
    vocabulary = IndexedVocabulary("synthetic", VOCAB, "")
    return write_index(out, map(Piece, documents), vocabulary, shard_tokens=-(-tokens // shards))


@pytest.fixture(scope="module")
def index(documents: list[np.ndarray], shards: int, tmp_path_factory: pytest.TempPathFactory) -> TokenIndex:
    return made(tmp_path_factory.mktemp("made") / "index", documents, shards)


def test_write(benchmark, documents, shards, tmp_path):
    folders: Iterator[int] = itertools.count()
    index = benchmark.pedantic(lambda: made(tmp_path / str(next(folders)), documents, shards), rounds=3)
    tokens = index.manifest.tokens
    benchmark.extra_info.update(tokens=tokens, bytes_of_a_token=sum(index.manifest.sizes.values()) / tokens)


def test_propose(benchmark, documents, index):
    """The first layer of a tree after a place in the corpus, every second one with a change three tokens before."""
    generator = np.random.default_rng(1)
    drafter = Datastore(str(index.folder)).open(TextTarget(VOCAB))
    matched = []

    def place():
        text = documents[generator.integers(len(documents) - 1)][: generator.integers(20, DOCUMENT)].copy()
        if generator.random() < 0.5:
            text[-4] = generator.integers(VOCAB)
        drafter.open(0, text, 2 * DOCUMENT)
        size, found = index.find_longest(text.tolist(), 16, 2)
        matched.append((size, sum(map(len, found))))
        return ([Frontier(0, TokenTree.root(int(text[-1])), np.array([0]), 10)],), {}

    benchmark.pedantic(drafter.propose, setup=place, rounds=ROUNDS)
    sizes, places = np.median(matched, axis=0)
    benchmark.extra_info.update(tokens=index.manifest.tokens, median_matched=sizes, median_places=places)
