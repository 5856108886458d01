"""A corpus: files of text and of JSON lines, read and tokenised piece by piece."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import TextIOWrapper
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

import attrs

from talon_core.basics.paths import about, in_utf8, utf8
from talon_core.errors import written

PATTERNS = ("*.txt", "*.md", "*.jsonl")
"""Which files of a folder are read, where nothing else is said."""

LINES = ".jsonl"
"""How files of JSON lines end, in any case; all others are texts."""

BLOCK = 2**16
"""Characters of a text file that are tokenised at a time, up to the last end of a line."""

BATCH = 2**20
"""Characters that a tokenizer gets at a time."""

Report = Callable[[int, int], None]
"""`report(done, all)`."""


@attrs.frozen
class Corpus:
    """The files that an index is made of.

    Attributes:
        files: in the order in which they are read.
        fields: the fields of a JSON line that are texts, or lists of texts; empty for `text`, else `turns`.
        size: bytes of all files.
    """

    files: tuple[Path, ...]
    fields: tuple[str, ...] = ()
    size: int = 0


@attrs.frozen
class Piece:
    """Some of a document's tokens.

    Attributes:
        tokens: token ids.
        last: whether the document ends with them.
    """

    tokens: Sequence[int]
    last: bool = True


@attrs.frozen
class _Text:
    """Some of a document, and how many bytes of its file have been read after it."""

    text: str
    last: bool
    read: int


def find_corpus(paths: Iterable[Path], fields: Sequence[str] = (), patterns: Sequence[str] = PATTERNS) -> Corpus:
    """The files that are meant by files and folders; folders are searched with all that are in them.

    Args:
        paths: files, which are read whatever they are called, and folders.
        fields: see `Corpus`.
        patterns: what files of folders are called, such as `*.txt`, or their paths from a folder on.

    Raises:
        ValueError: if there are none, a folder has none, one is given twice, or all are empty; or if no file of a
            folder can be called like a pattern.
        OSError: if one is not there, or cannot be read.
    """
    for pattern in patterns:
        _check_pattern(pattern)
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted({file for pattern in patterns for file in path.rglob(pattern) if file.is_file()})
            if not found:
                raise ValueError(f"the folder '{path}' has no files called {' or '.join(patterns)}")
        files += found
    if not files:
        raise ValueError("there are no texts; give files, or folders with files in them")
    known: set[Path] = set()
    for file in files:
        if file.resolve() in known:
            raise ValueError(f"'{file}' is given twice; give each file once")
        known.add(file.resolve())
        with file.open("rb"):
            pass  # what cannot be read is refused before hours of work
    size = sum(file.stat().st_size for file in files)
    if not size:
        raise ValueError("the texts are empty; give files with something in them")
    return Corpus(tuple(files), tuple(fields), size)


def _check_pattern(pattern: str) -> None:
    """Refuse a pattern that no file of a folder can have.

    Raises:
        ValueError: if it is empty, leads out of the folder, or has two stars beside something else.
    """
    path = PurePath(pattern)
    if path.anchor or not path.parts or ".." in path.parts:
        raise ValueError(
            f"the pattern {written(pattern)} names no files of a folder; it must be a name such as *.py, or a path "
            "from the folder on such as src/*.py"
        )
    if any("**" in part and part != "**" for part in path.parts):
        raise ValueError(
            f"the pattern {written(pattern)} has ** beside something else; ** must stand alone between slashes, as in "
            "src/**/*.py"
        )


def tokenised(
    corpus: Corpus, tokenizer: Any, report: Report = lambda done, all_: None, size: int | None = None
) -> Iterator[Piece]:
    """The tokens of a corpus, without special tokens; each text file, and each text of a JSON line, is a document.

    Args:
        corpus: what is read.
        tokenizer: a transformers tokenizer.
        report: is told how many kilobytes are done, and of how many.
        size: of the model's vocabulary; a token that it does not have ends a document. None if not known.

    Raises:
        ValueError: if a file is not UTF-8, or a line is no JSON or has none of the fields; the sentence says where.
        OSError: if a file cannot be read.
    """
    texts: list[_Text] = []
    waiting, all_ = 0, -(-corpus.size // 1000)
    report(0, all_)
    for text in chain(_texts(corpus), [None]):
        if text is not None:
            texts.append(text)
            waiting += len(text.text)
        if texts and (text is None or waiting >= BATCH):
            found = tokenizer([one.text for one in texts], add_special_tokens=False, verbose=False)["input_ids"]
            for ids, one in zip(found, texts, strict=True):
                yield from _pieces(ids, one.last, size)
            report(-(-texts[-1].read // 1000), all_)
            texts, waiting = [], 0


def _pieces(ids: Sequence[int], last: bool, size: int | None) -> Iterator[Piece]:
    """Some of a document, or what stands between tokens that the model does not have."""
    start = 0
    if size is not None and max(ids, default=0) >= size:
        for place, token in enumerate(ids):
            if token >= size:
                yield Piece(ids[start:place])
                start = place + 1
    yield Piece(ids[start:], last)


def _texts(corpus: Corpus) -> Iterator[_Text]:
    read = 0
    for file in corpus.files:
        with about(file):
            for one in _lines(file, corpus.fields) if file.suffix.lower() == LINES else _blocks(file):
                yield attrs.evolve(one, read=read + one.read)
        read += file.stat().st_size


def _blocks(file: Path) -> Iterator[_Text]:
    """A text file in blocks that end where a line does, or a word, so that few tokens are cut."""
    rest = ""
    with file.open("rb") as bytes_, TextIOWrapper(bytes_, encoding="utf-8-sig") as handle:
        while True:
            try:
                block = handle.read(BLOCK)
            except UnicodeDecodeError:
                utf8(file.read_bytes(), f"'{file}'")  # says where
                raise
            if not block:
                break
            rest += block
            if len(rest) >= BLOCK:
                end = rest.rfind("\n") + 1 or max(rest.rfind(" "), 0) or len(rest)
                yield _Text(rest[:end], False, bytes_.tell())
                rest = rest[end:]
    yield _Text(rest, True, os.path.getsize(file))


def _lines(file: Path, fields: Sequence[str]) -> Iterator[_Text]:
    """The texts of a file of JSON lines."""
    read = 0
    with file.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            read += len(line)
            if line.strip():
                where = f"line {number} of '{file}'"
                yield from (_Text(text, True, read) for text in _fields(utf8(line, where), where, fields))


def _fields(line: str, where: str, fields: Sequence[str]) -> list[str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is not JSON; each line must be an object, or a text in quotes") from None
    if isinstance(value, str) and not fields:
        return [value]
    found: list[Any] = []
    if isinstance(value, dict):
        names = fields or (["text"] if "text" in value else ["turns"])
        found = [value.get(name) for name in names]
    texts = [text for one in found for text in (one if isinstance(one, list) else [one])]
    if not found or not all(isinstance(text, str) for text in texts):
        wanted = " and ".join(f"'{name}'" for name in fields) if fields else "'text' or 'turns'"
        raise ValueError(f"{where} has no text in {wanted}; --field names the fields that are texts, or lists of texts")
    if not all(map(in_utf8, texts)):
        raise ValueError(f"{where} has a text with half a surrogate pair, which is no character; write both or none")
    return texts
