"""Making an index: tokens in one row, then a suffix array for each shard, in a folder that is there whole or not."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np

from talon_core.basics.paths import about, alone, write_whole
from talon_core.retrieval.corpus import Piece, Report
from talon_core.retrieval.index import MANIFEST, SUFFIXES, TOKENS, IndexedVocabulary, IndexManifest, TokenIndex
from talon_core.retrieval.suffix_array import COMPARED, MOST, suffix_array

SHARD_TOKENS = 2**24
"""Tokens of a shard by default, which take about 850 MB while they are sorted."""


def _unwatched() -> AbstractContextManager[Report]:
    return nullcontext(lambda done, all_: None)


def check_shard(tokens: int, called: str = "shard_tokens") -> None:
    """Refuse what is no size of a shard.

    Raises:
        ValueError: if it is none.
    """
    if not 1 <= tokens <= MOST:
        raise ValueError(f"{called} is {tokens}; it must be from 1 to {MOST}")


def check_new(out: Path) -> None:
    """Refuse a folder that is there already.

    Raises:
        ValueError: if it is.
    """
    if os.path.lexists(out):
        raise ValueError(f"'{out}' is there already; name a folder that is not, or delete it first")


def write_index(
    out: Path,
    pieces: Iterable[Piece],
    vocabulary: IndexedVocabulary,
    *,
    shard_tokens: int = SHARD_TOKENS,
    sorting: Callable[[], AbstractContextManager[Report]] = _unwatched,
) -> TokenIndex:
    """Make an index.

    It is made in a hidden folder beside `out` that is renamed at the end. Whatever is raised meanwhile, that folder is
    deleted; one that a killed process left behind is deleted by the next that makes the same index.

    Args:
        out: the folder to make.
        pieces: documents in pieces, read once.
        vocabulary: what their token ids mean.
        shard_tokens: tokens of a shard, 1 to 2**31. About 50 bytes of memory are needed for each token of a shard.
        sorting: makes what is told how many shards are sorted, and of how many.

    Raises:
        ValueError: if there are no tokens, one is not of the vocabulary, `out` is there already, or another process is
            making it.
        OSError: if it cannot be written.
    """
    check_shard(shard_tokens)
    check_new(out)
    with _made_whole(out) as folder:
        documents, tokens, tokens_sha256 = _write_tokens(folder / TOKENS, pieces, vocabulary)
        if not documents:
            raise ValueError("there are no tokens in these texts, so there is nothing to look up")
        suffixes_sha256 = _write_suffixes(folder, tokens, vocabulary, shard_tokens, sorting)
        manifest = IndexManifest(
            model=vocabulary.model,
            vocab_size=vocabulary.size,
            tokenizer_sha256=vocabulary.sha256,
            documents=documents,
            tokens=tokens,
            shard_tokens=shard_tokens,
            compared=COMPARED,
            byte_order=sys.byteorder,
            sha256={TOKENS: tokens_sha256, SUFFIXES: suffixes_sha256},
        )
        write_whole(folder / MANIFEST, json.dumps(manifest.as_dict(), ensure_ascii=False, indent=2) + "\n")
    return TokenIndex(out)


@contextmanager
def _made_whole(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` if all goes well, and else is deleted."""
    unfinished = out.absolute().parent / f".{out.name}.unfinished"
    unfinished.mkdir(parents=True, exist_ok=True)
    with alone(unfinished / "lock", f"another process is making '{out}'; wait for it, or name another folder"):
        try:
            folder = unfinished / "index"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            yield folder
            check_new(out)
            folder.rename(out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _write_tokens(file: Path, pieces: Iterable[Piece], vocabulary: IndexedVocabulary) -> tuple[int, int, str]:
    """Write the tokens of all documents that have some; how many documents and tokens there are, and the hash."""
    documents = tokens = pending = 0
    written = hashlib.sha256()
    with about(file), file.open("wb") as handle:
        for piece in pieces:
            ids = np.asarray(piece.tokens, dtype=np.int64)
            if len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary.size:
                wrong = ids[(ids < 0) | (ids >= vocabulary.size)][0]
                raise ValueError(f"a document has the token {wrong}; it must be from 0 to {vocabulary.size - 1}")
            pending += len(ids)
            if piece.last and pending:
                ids = np.append(ids, vocabulary.end)
                documents, tokens, pending = documents + 1, tokens + pending + 1, 0
            data = ids.astype(vocabulary.dtype).tobytes()
            written.update(data)
            handle.write(data)
        if pending:
            raise ValueError("the last document does not end; its last piece must say so")
    return documents, tokens, written.hexdigest()


def _write_suffixes(
    folder: Path,
    tokens: int,
    vocabulary: IndexedVocabulary,
    shard_tokens: int,
    sorting: Callable[[], AbstractContextManager[Report]],
) -> str:
    """Sort the shards one after the other, and write their suffix arrays; the hash."""
    written = hashlib.sha256()
    starts = range(0, tokens, shard_tokens)
    with about(folder / SUFFIXES), (folder / SUFFIXES).open("wb") as handle, sorting() as report:
        row = np.memmap(folder / TOKENS, dtype=vocabulary.dtype, mode="r")
        report(0, len(starts))
        for done, start in enumerate(starts, start=1):
            length = min(shard_tokens, tokens - start)
            shard = suffix_array(row[start : start + length + COMPARED], length, vocabulary.end)
            data = shard.data.cast("B")
            written.update(data)
            handle.write(data)
            report(done, len(starts))
    return written.hexdigest()
