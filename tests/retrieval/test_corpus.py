"""Reading a corpus: which files, which texts, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from talon_core.retrieval import Corpus, find_corpus, tokenised
from talon_core.retrieval.corpus import BLOCK


class Bytes:
    """A tokenizer with a token for each byte; it counts how often it is asked."""

    asked = 0

    def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
        assert options == {"add_special_tokens": False, "verbose": False}
        self.asked += 1
        return {"input_ids": [list(text.encode()) for text in texts]}


def documents(corpus: Corpus) -> list[str]:
    """The texts of a corpus, put together of their tokens."""
    found, text = [], b""
    for piece in tokenised(corpus, Bytes()):
        text += bytes(piece.tokens)
        if piece.last:
            found.append(text.decode())
            text = b""
    assert not text
    return found


def lines(file: Path, *values: object) -> Path:
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return file


def test_a_folder_is_searched_with_all_that_are_in_it(tmp_path):
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.md").write_text("two")
    (tmp_path / "code.py").write_text("three")
    lines(tmp_path / "c.jsonl", {"text": "four"})
    assert documents(find_corpus([tmp_path])) == ["one", "four", "two"]
    assert documents(find_corpus([tmp_path], patterns=["*.py", "b.*"])) == ["one", "three"]
    assert documents(find_corpus([tmp_path / "code.py", tmp_path / "deep"])) == ["three", "two"]


def test_each_text_of_a_line_is_a_document(tmp_path):
    file = lines(
        tmp_path / "some.jsonl", {"text": "a"}, "b", {"turns": ["c", "d"]}, {"text": ["e", ""], "turns": ["f"]}
    )
    with file.open("a") as more:
        more.write('\n  \n"\\u2028g"')
    assert documents(find_corpus([file])) == ["a", "b", "c", "d", "e", "", "\u2028g"]


def test_fields_are_taken_in_the_order_in_which_they_are_named(tmp_path):
    file = lines(tmp_path / "some.jsonl", {"prompt": "a", "answer": ["b", "c"], "text": "d"})
    assert documents(find_corpus([file], ["answer", "prompt"])) == ["b", "c", "a"]


@pytest.mark.parametrize("unit", ["ein Satz mit Wörtern\n", "Wörter ohne Zeilen ", "ohnealles"])
def test_a_long_text_is_read_in_blocks_and_nothing_of_it_is_lost(tmp_path, unit):
    text = unit * (3 * BLOCK // len(unit))
    (tmp_path / "long.txt").write_bytes("\ufeff".encode() + text.encode())
    corpus = find_corpus([tmp_path])
    assert documents(corpus) == [text]
    pieces = [*tokenised(corpus, Bytes())]
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) >= 3
    texts = [bytes(piece.tokens) for piece in pieces]
    if "\n" in unit:
        assert all(one.endswith(b"\n") for one in texts[:-1])
    elif " " in unit:
        assert all(one.startswith(b" ") for one in texts[1:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("abzc", ["ab", "c"]), ("zabzz", ["", "ab", "", ""]), ("ab", ["ab"]), ("", [""])],
)
def test_a_token_that_the_model_does_not_have_ends_a_document(tmp_path, text, expected):
    file = lines(tmp_path / "some.jsonl", {"text": text}, {"text": "d"})
    pieces = [*tokenised(find_corpus([file]), Bytes(), size=ord("z"))]
    assert [bytes(piece.tokens).decode() for piece in pieces] == [*expected, "d"]
    assert all(piece.last for piece in pieces)


def test_where_a_block_ends_such_a_document_goes_on(tmp_path):
    (tmp_path / "long.txt").write_text("a" * (BLOCK - 1) + "z" + "a" * 9)
    pieces = [*tokenised(find_corpus([tmp_path]), Bytes(), size=ord("z"))]
    assert [(len(piece.tokens), piece.last) for piece in pieces] == [(BLOCK - 1, True), (0, False), (9, True)]


def test_progress_is_told_in_kilobytes_and_ends_with_all(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("words and\n" * 150_000)
    told = []
    tokenizer = Bytes()
    pieces = [*tokenised(find_corpus([tmp_path]), tokenizer, lambda done, all_: told.append((done, all_)))]
    assert told[0] == (0, 3000)
    assert told[-1] == (3000, 3000)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert tokenizer.asked == len(told) - 1 == 3
    assert sum(len(piece.tokens) for piece in pieces) == 3_000_000


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2 of '.*' is not JSON; each line must be an object, or a text in quotes"),
        (b"[" * 100_000, "line 2 of '.*' is not JSON"),
        (b"3", "line 2 of '.*' has no text in 'text' or 'turns'; --field names the fields"),
        (b'{"prompt": "a"}', "line 2 of '.*' has no text in 'text' or 'turns'"),
        (b'{"text": 3}', "line 2 of '.*' has no text in 'text' or 'turns'"),
        (b'{"turns": ["a", null]}', "line 2 of '.*' has no text in 'text' or 'turns'"),
        (
            b'{"turns": ["a", "b\\ud800"]}',
            "line 2 of '.*' has a text with half a surrogate pair, which is no character",
        ),
        (b'"\xff"', "line 2 of '.*' is not UTF-8 text"),
    ],
    ids=str,
)
def test_a_line_without_a_text_is_refused_with_its_number(tmp_path, line, says):
    file = tmp_path / "some.jsonl"
    file.write_bytes(b'"a"\n' + line)
    with pytest.raises(ValueError, match=says):
        documents(find_corpus([file]))


def test_a_field_that_is_not_there_is_named(tmp_path):
    file = lines(tmp_path / "some.jsonl", {"text": "a"})
    with pytest.raises(ValueError, match="has no text in 'prompt' and 'answer'; --field"):
        documents(find_corpus([file], ["prompt", "answer"]))
    with pytest.raises(ValueError, match="has no text in 'text'; --field"):
        documents(find_corpus([lines(file, "a")], ["text"]))


def test_a_text_that_is_not_utf_8_is_refused_with_its_name(tmp_path):
    (tmp_path / "some.txt").write_bytes(b"word \xff")
    with pytest.raises(ValueError, match=r"some\.txt' is not UTF-8 text \(byte 5 is 0xff\)"):
        documents(find_corpus([tmp_path]))


def test_files_that_are_not_there_are_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        find_corpus([tmp_path / "none.txt"])
    with pytest.raises(ValueError, match=r"the folder '.*' has no files called \*\.txt or \*\.md or \*\.jsonl"):
        find_corpus([tmp_path])
    with pytest.raises(ValueError, match="there are no texts; give files, or folders"):
        find_corpus([])
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="the texts are empty; give files with something in them"):
        find_corpus([tmp_path])
    with pytest.raises(ValueError, match=r"a\.txt' is given twice; give each file once"):
        find_corpus([tmp_path, tmp_path / "a.txt"])
