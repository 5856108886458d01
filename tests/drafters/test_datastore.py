"""The drafter `datastore`: REST's rule by brute force, what it refuses, and decoding with it."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talon_core.cli.drafter_check import drafter_of_files
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Committed, Frontier
from talon_core.engine.checked_drafter import files_known
from talon_core.engine.text_target import TextTarget
from talon_core.plugins.parts import Parts, built
from talon_core.plugins.registry import load_registry
from talon_core.request import Request
from talon_core.retrieval import IndexedVocabulary, Piece, vocabulary_of, write_index
from talon_core.table import TableTarget
from talon_core.testing import check_drafter
from talon_core.trace.record import drafter_hash
from talon_core.trace.replay import Method
from talon_core.trace.sweep import _code_of
from talon_core.tree import TokenTree
from talon_drafters import Datastore
from talon_tests.random_drafters import random_target

VOCAB = 4
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=25)


def index_of(folder: Path, documents: Any, shard_tokens: int = 2**20, **vocabulary: Any) -> str:
    named = IndexedVocabulary(**{"model": "some", "size": VOCAB, "sha256": "hash", **vocabulary})
    return str(write_index(folder, map(Piece, documents), named, shard_tokens=shard_tokens).folder)


def trie_by_hand(documents: list[list[int]], text: list[int], options: Datastore) -> dict[tuple[int, ...], int]:
    """REST's rule: the longest end of the text that occurs, its continuations, their most frequent beginnings."""
    for size in range(min(options.longest, len(text)), options.shortest - 1, -1):
        ends = [(one, at + size) for one in documents for at in range(len(one)) if one[at : at + size] == text[-size:]]
        if ends:
            counts: Counter[tuple[int, ...]] = Counter()
            for one, end in ends:
                counts.update(tuple(one[end:to]) for to in range(end + 1, min(end + options.length, len(one)) + 1))
            order = sorted(counts.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
            return {(): len(ends), **dict(order[: options.nodes])}
    return {}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(TOKENS, min_size=1, max_size=5).filter(any),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    *(st.integers(1, 3), st.integers(0, 6), st.integers(1, 5), st.sampled_from([1, 3, 64]), st.integers(1, 30)),
)
def test_what_is_offered_is_the_trie_by_hand(
    tmp_path_factory, documents, text, shortest, more, length, nodes, shard_tokens
):
    path = index_of(tmp_path_factory.mktemp("one") / "index", documents, shard_tokens)
    options = Datastore(path, shortest + more, shortest, length=length, nodes=nodes)
    drafter = options.open(TextTarget(VOCAB))
    drafter.open(0, np.array(text[:1]), 100)
    if text[1:]:
        drafter.commit({0: Committed(np.array(text[1:]), np.array([0]))})
    expected = trie_by_hand(documents, text, options)

    found, waiting = {}, [(TokenTree.root(text[-1]), ())]
    while waiting:
        tree, beginning = waiting.pop()
        (candidates,) = drafter.propose([Frontier(0, tree, np.array([len(tree) - 1]), VOCAB)]).candidates
        left = expected.get(beginning, 0)
        for token, logp in zip(candidates.tokens[0].tolist(), candidates.logp[0].tolist(), strict=True):
            if token >= 0:
                left -= expected[*beginning, token]
                found[*beginning, token] = logp
                waiting.append((tree.extend([token], [len(tree) - 1], [-0.5]), (*beginning, token)))
        for token in candidates.tokens[0][candidates.tokens[0] >= 0].tolist():
            share = (expected[*beginning, token] + left / VOCAB) / expected[beginning]
            assert np.exp(found[*beginning, token]) == pytest.approx(share)
    assert {*found} == {*expected} - {()}


def test_no_more_than_the_wanted_matches_are_counted(tmp_path):
    path = index_of(tmp_path / "index", [[0, 1]] * 6 + [[0, 2]] * 3)
    for matches, shares in ((9, [2 / 3, 1 / 3]), (3, [2 / 3, 1 / 3]), (1, [1.0])):
        drafter = Datastore(path, shortest=1, matches=matches).open(TextTarget(VOCAB))
        drafter.open(0, np.array([0]), 9)
        (candidates,) = drafter.propose([Frontier(0, TokenTree.root(0), np.array([0]), 4)]).candidates
        np.testing.assert_allclose(np.exp(candidates.logp[0]), shares)


def test_shards_keep_the_contract_as_one_array_does(tmp_path):
    documents = np.random.default_rng(2).integers(0, VOCAB, (20, 12)).tolist()
    for shard_tokens in (31, 2**20):
        path = index_of(tmp_path / str(shard_tokens), documents, shard_tokens)
        target = TableTarget(np.zeros((VOCAB, VOCAB)))
        check_drafter(Datastore(path), target, prompts=documents[:3], max_examples=8, tolerance=0)


@pytest.mark.parametrize("foreign", [-1, VOCAB, VOCAB + 1, 10**9])
def test_tokens_outside_the_vocabulary_match_nothing(tmp_path, foreign):
    drafter = Datastore(index_of(tmp_path / "index", [[0, 1, 2]]), shortest=1).open(TextTarget(VOCAB + 9))
    drafter.open(0, np.array([foreign, 0, 1]), 9)
    (candidates,) = drafter.propose([Frontier(0, TokenTree.root(1), np.array([0]), 4)]).candidates
    assert candidates.tokens.tolist() == [[2]]
    drafter.commit({0: Committed(np.array([foreign]), np.array([0]))})
    (candidates,) = drafter.propose([Frontier(0, TokenTree.root(foreign), np.array([0]), 4)]).candidates
    assert candidates.tokens.tolist() == [[-1]]


def test_greedy_output_is_the_target_s_own_and_guesses_are_accepted(tmp_path):
    model = random_target()
    prompt = np.array([0, 2, 1])
    plain = decoder_for_model(model, None, Parts(policy=None)).run_all([Request(prompt, 40)])[0].token_ids
    ids = [*prompt.tolist(), *plain]
    path = index_of(tmp_path / "index", [ids[:20], ids[15:30], [1, 1, 1, 1]], 9, size=3)
    for policy in ("chain:length=6", "talon:budget=12,top_k=3,mu=0.01", "eagle2:budget=9,depth=4,top_k=2"):
        result = decoder_for_model(model, None, Parts(f"datastore:path={path}", policy)).run_all([Request(prompt, 40)])
        assert result[0].token_ids == plain
        assert result[0].stats.target_passes < 25


def test_the_defaults_are_rest_s(tmp_path):
    options = Datastore("some")
    assert (options.longest, options.shortest, options.matches) == (16, 2, 5000)
    assert (options.length, options.nodes) == (10, 64)


def test_its_files_are_recognised(tmp_path):
    path = index_of(tmp_path / "index", [[0, 1]])
    assert files_known(Datastore, path) == Datastore(path)
    assert files_known(Datastore, str(tmp_path)) is None
    assert drafter_of_files(path, load_registry()) == Datastore(path)
    drafter = Datastore(path).open(TextTarget(VOCAB))
    assert drafter.describe() == {"model": "some", "documents": 1, "tokens": 3, "shards": 1, "bytes": 15}
    (tmp_path / "index" / "tokens.bin").unlink()
    with pytest.raises(ValueError, match=r"is damaged: tokens\.bin is missing"):
        files_known(Datastore, path)


def test_another_index_at_the_same_place_is_another_drafter(tmp_path):
    path = index_of(tmp_path / "index", [[0, 1, 2]])
    spec = f"datastore:path={path}"
    kinds = (Datastore(path), built(load_registry(), "drafter", f"hybrid:of=ngram+datastore[path={path}]"))

    def told():
        """For a recording, and for a line of a sweep."""
        rule = built(load_registry(), "rule", "match")
        methods = [Method(one.name, None, rule, one) for one in kinds]
        return [drafter_hash(spec, one, None) for one in kinds] + [*map(_code_of, methods)]

    before = told()
    assert told() == before
    shutil.rmtree(path)
    index_of(tmp_path / "index", [[0, 1, 2]])
    assert told() == before
    shutil.rmtree(path)
    index_of(tmp_path / "index", [[0, 1, 3]])
    assert all(one != other for one, other in zip(told(), before, strict=True))
    shutil.rmtree(path)
    with pytest.raises(ValueError, match=r"index' is no datastore; give a folder of talon datastore build$"):
        told()


class Named:
    """A model of which nothing is asked but its name."""

    def __init__(self, name_or_path: str) -> None:
        self.name_or_path = name_or_path


class Tokenizer:
    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}


def test_an_index_of_another_tokenizer_is_refused(tmp_path, monkeypatch):
    tokenizers = {"one": Tokenizer("a", "b", "c"), "other": Tokenizer("a", "c", "b")}

    def load(name: str) -> Tokenizer:
        if name not in tokenizers:
            raise ValueError("there is none")
        return tokenizers[name]

    monkeypatch.setattr("talon_drafters.datastore.drafter.load_tokenizer", load)
    vocabulary = vocabulary_of(tokenizers["one"], "first")
    path = index_of(tmp_path / "index", [[0, 1]], size=vocabulary.size, sha256=vocabulary.sha256)
    target: Any = TextTarget(3)
    for name in ("one", "without", ""):
        target.model = Named(name)
        Datastore(path).open(target)
    target.model = Named("other")
    with pytest.raises(ValueError, match="with the tokenizer of 'some', and the target has another one: build"):
        Datastore(path).open(target)


def test_an_index_of_a_larger_vocabulary_is_refused(tmp_path):
    path = index_of(tmp_path / "index", [[0, 1]])
    with pytest.raises(ValueError, match="tokenizer of 'some', which has 4 tokens; the target has 3: build one with"):
        Datastore(path).open(TextTarget(3))
    with pytest.raises(ValueError, match="is no datastore; give a folder of talon datastore build"):
        Datastore(str(tmp_path)).open(TextTarget(3))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"longest": 0}, "longest"),
        ({"longest": 17}, "longest"),
        ({"shortest": 0}, "shortest"),
        ({"shortest": 5, "longest": 4}, "shortest must be at most longest, 4, not 5"),
        ({"matches": 0}, "matches"),
        ({"length": 0}, "length"),
        ({"nodes": 0}, "nodes"),
    ],
    ids=str,
)
def test_senseless_options_are_refused_by_name(options, says):
    with pytest.raises(ValueError, match=says):
        Datastore("some", **options)
