"""Indices of a corpus: what they find, wherever shards end, and that they are there whole or not at all."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talon_core.basics.paths import alone
from talon_core.retrieval import IndexedVocabulary, Piece, TokenIndex, vocabulary_of, write_index
from talon_core.retrieval.index import MANIFEST, SUFFIXES, TOKENS
from talon_core.retrieval.suffix_array import COMPARED

VOCABULARY = IndexedVocabulary("some", 4, "hash")
DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=6).filter(any)
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])

numbers = count()


def written(folder: Path, documents: Sequence[Sequence[int]], shard_tokens: int = 2**20) -> TokenIndex:
    return write_index(folder / str(next(numbers)), map(Piece, documents), VOCABULARY, shard_tokens=shard_tokens)


def followed(documents: Sequence[Sequence[int]], tokens: Sequence[int], length: int) -> list[list[int]]:
    """What follows these tokens, read off the documents, in no order."""
    size = len(tokens)
    ends = [(text, at + size) for text in documents for at in range(len(text)) if text[at : at + size] == tokens]
    rows = [[*text[end : end + length]] for text, end in ends]
    return sorted(row + [VOCABULARY.end] * (length - len(row)) for row in rows)


def found(index: TokenIndex, tokens: Sequence[int], length: int) -> list[list[int]]:
    parts = index.find(tokens)
    return sorted(index.continuations(parts, len(tokens), 10**6, length).tolist()) if parts else []


@FEW
@given(DOCUMENTS, st.integers(1, 40), st.data())
def test_what_follows_is_what_follows_in_the_documents_wherever_shards_end(tmp_path, documents, shard_tokens, data):
    index = written(tmp_path, documents, shard_tokens)
    text = data.draw(st.sampled_from([one for one in documents if one]))
    start = data.draw(st.integers(0, len(text) - 1))
    occurs = text[start : start + data.draw(st.integers(1, COMPARED))]
    for tokens in (occurs, data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))):
        assert found(index, tokens, 5) == followed(documents, tokens, 5)


@FEW
@given(DOCUMENTS, st.integers(1, 40), st.lists(st.integers(-1, 5), min_size=1, max_size=20), st.integers(1, 4))
def test_the_longest_end_that_occurs_is_found(tmp_path, documents, shard_tokens, text, shortest):
    index = written(tmp_path, documents, shard_tokens)
    for ending in (text, [9, *documents[-1][:20], *text[:2]]):
        sizes = [size for size in range(shortest, min(9, len(ending)) + 1) if followed(documents, ending[-size:], 1)]
        size, parts = index.find_longest(ending, 9, shortest)
        assert size == max(sizes, default=0)
        assert parts == (index.find(ending[-size:]) if sizes else [])


@FEW
@given(DOCUMENTS, st.integers(1, 40))
def test_a_document_in_pieces_is_the_same_index(tmp_path, documents, shard_tokens):
    pieces = [
        piece for text in documents for piece in (Piece(text[:3], last=False), Piece([], last=False), Piece(text[3:]))
    ]
    index = write_index(tmp_path / str(next(numbers)), pieces, VOCABULARY, shard_tokens=shard_tokens)
    whole = written(tmp_path, documents, shard_tokens)
    assert index.manifest == whole.manifest
    assert index.manifest.documents == sum(map(bool, documents))
    assert index.manifest.tokens == sum(len(text) + 1 for text in documents if text)
    index.check()


@pytest.mark.parametrize("shard_tokens", [7, 2**20])
def test_of_more_places_those_are_taken_that_are_evenly_spread(tmp_path, shard_tokens):
    index = written(tmp_path, [[0, token] for token in (1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3)], shard_tokens)
    parts = index.find([0])
    everything = index.continuations(parts, 1, 12, 1)
    assert index.continuations(parts, 1, 6, 1).tolist() == everything[::2].tolist()
    assert index.continuations(parts, 1, 5, 1).tolist() == everything[[0, 2, 4, 7, 9]].tolist()
    if shard_tokens == 2**20:
        assert index.continuations(parts, 1, 3, 1).tolist() == [[1], [2], [3]]


@pytest.mark.parametrize(("size", "bytes_"), [(2, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), (262_144, 4)])
def test_ids_take_the_smallest_type_that_holds_them_and_the_end(tmp_path, size, bytes_):
    index = write_index(tmp_path / "index", [Piece([0, size - 1])], IndexedVocabulary("some", size, ""))
    assert index.manifest.sizes == {TOKENS: 3 * bytes_, SUFFIXES: 3 * 4}
    assert index.continuations(index.find([0]), 1, 9, 2).tolist() == [[size - 1, size]]


class Words:
    """A tokenizer with such tokens."""

    def __init__(self, *tokens):
        self.tokens = tokens

    def get_vocab(self):
        return {token: number for number, token in enumerate(self.tokens)}


def test_tokens_may_be_bytes_as_those_of_models_with_code_of_their_own_are():
    vocabularies = [vocabulary_of(Words(*tokens), "some") for tokens in ((b"\xff", "a"), (b"\xfe", "a"), ("\xff", "a"))]
    assert [one.size for one in vocabularies] == [2, 2, 2]
    assert len({one.sha256 for one in vocabularies}) == 3


def test_tokens_that_a_model_does_not_have_are_none_of_its_vocabulary():
    own, added = Words("a", "b"), Words("a", "b", "[PAD]")
    assert vocabulary_of(added, "some", 2) == vocabulary_of(own, "some") == vocabulary_of(own, "some", 9)
    assert vocabulary_of(added, "some").size == 3


def test_what_is_not_looked_at_stays_on_disk(tmp_path):
    index = written(tmp_path, [[0, 1, 2]])
    assert not index._tokens.flags.owndata
    assert not index._tokens.flags.writeable


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([], "there are no tokens in these texts"),
        ([Piece([]), Piece([], last=False), Piece([])], "there are no tokens in these texts"),
        ([Piece([1, 4])], "a document has the token 4; it must be from 0 to 3"),
        ([Piece([-1])], "a document has the token -1; it must be from 0 to 3"),
        ([Piece([1], last=False)], "the last document does not end; its last piece must say so"),
    ],
    ids=str,
)
def test_what_cannot_be_indexed_is_refused_and_leaves_nothing(tmp_path, pieces, says):
    with pytest.raises(ValueError, match=says):
        write_index(tmp_path / "index", pieces, VOCABULARY)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("shard_tokens", [0, -1, 2**31 + 1])
def test_shards_have_a_size(tmp_path, shard_tokens):
    with pytest.raises(ValueError, match=f"shard_tokens is {shard_tokens}; it must be from 1 to 2147483648"):
        written(tmp_path, [[1]], shard_tokens)


def interrupted() -> Iterator[Piece]:
    yield Piece([1, 2])
    raise KeyboardInterrupt


def test_an_interrupted_one_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path / "index", interrupted(), VOCABULARY)
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path):
    left = tmp_path / ".index.unfinished" / "index"
    left.mkdir(parents=True)
    (left / TOKENS).write_bytes(b"half")
    write_index(tmp_path / "index", [Piece([1, 2])], VOCABULARY).check()
    assert [file.name for file in tmp_path.iterdir()] == ["index"]


def test_one_process_makes_an_index_at_a_time(tmp_path):
    unfinished = tmp_path / ".index.unfinished"
    unfinished.mkdir()
    with alone(unfinished / "lock", ""), pytest.raises(ValueError, match=r"another process is making '.*index'; wait"):
        write_index(tmp_path / "index", [Piece([1, 2])], VOCABULARY)
    assert unfinished.is_dir()


def test_what_is_there_already_is_left_alone(tmp_path):
    (tmp_path / "index").mkdir()
    with pytest.raises(ValueError, match=r"'.*index' is there already; name a folder that is not, or delete it first"):
        write_index(tmp_path / "index", interrupted(), VOCABULARY)
    assert [*tmp_path.rglob("*")] == [tmp_path / "index"]


def test_a_folder_that_appears_meanwhile_is_left_alone(tmp_path):
    def pieces() -> Iterator[Piece]:
        yield Piece([1])
        (tmp_path / "index").mkdir()

    with pytest.raises(ValueError, match="there already"):
        write_index(tmp_path / "index", pieces(), VOCABULARY)
    assert [*tmp_path.rglob("*")] == [tmp_path / "index"]


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return written(tmp_path, [[0, 1, 2], [3, 1]]).folder


def changed(folder: Path, **values: object) -> None:
    file = folder / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kind": "talon preset"}, "it must say that its kind is 'talon datastore'"),
        ({"format": 2}, "it has format 2; this version reads format 1"),
        ({"tokens": 0}, "'tokens' is 0; it must be a whole number of at least 1"),
        ({"compared": 17}, "'compared' is 17; it must be at most 16"),
        ({"more": 1}, "'more' is not known"),
        ({"byte_order": "middle"}, "'byte_order'"),
        ({"tokens": 8}, "is damaged: tokens.bin has 7 bytes in place of 8; build it again"),
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_right_is_refused(index, values, says):
    changed(index, **values)
    with pytest.raises(ValueError, match=says) as error:
        TokenIndex(index)
    assert str(index) in str(error.value)


def test_an_index_of_another_kind_of_machine_is_refused(index):
    other = {"little": "big", "big": "little"}[json.loads((index / MANIFEST).read_text())["byte_order"]]
    changed(index, byte_order=other)
    with pytest.raises(ValueError, match=f"is of a {other}-endian machine; build it again on this one"):
        TokenIndex(index)


def test_a_manifest_that_is_cut_off_is_refused(index):
    file = index / MANIFEST
    file.write_text(file.read_text()[:-9])
    with pytest.raises(ValueError, match=r"cannot be read: index\.json: it is not JSON"):
        TokenIndex(index)


@pytest.mark.parametrize("name", [TOKENS, SUFFIXES])
def test_files_that_are_missing_or_cut_off_are_refused(index, name):
    size = (index / name).stat().st_size
    os.truncate(index / name, size - 1)
    with pytest.raises(ValueError, match=rf"is damaged: {name} has {size - 1} bytes in place of {size}"):
        TokenIndex(index)
    (index / name).unlink()
    with pytest.raises(ValueError, match=rf"is damaged: {name} is missing; build it again"):
        TokenIndex(index)


def test_a_folder_of_something_else_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ValueError, match=re.escape(f"'{folder}' is no datastore; give a folder of talon data")):
            TokenIndex(folder)


@pytest.mark.parametrize("name", [TOKENS, SUFFIXES])
def test_changed_bytes_are_found_by_a_check_and_never_make_a_look_up_fail(index, name):
    TokenIndex(index).check()
    (index / name).write_bytes(bytes([255]) * (index / name).stat().st_size)
    damaged = TokenIndex(index)
    with pytest.raises(ValueError, match=f"is damaged: {name} is not as it was written; build it again"):
        damaged.check()
    for tokens in ([0], [1], [3, 1]):
        rows = damaged.continuations(damaged.find(tokens) or [range(7)], len(tokens), 9, 3)
        assert rows.min() >= 0
        assert rows.max() <= VOCABULARY.end
