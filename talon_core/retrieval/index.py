"""An index of a corpus's tokens: what is in its folder, and what followed a few tokens in the corpus."""

import hashlib
import json
import mmap
import os
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics import records
from talon_core.basics.paths import small_text
from talon_core.retrieval.suffix_array import COMPARED, MOST
from talon_core.tree import IntArray

KIND = "talon datastore"
FORMAT = 1
"""Of the folder; another number is another form."""

MANIFEST, TOKENS, SUFFIXES = "index.json", "tokens.bin", "suffixes.bin"


@attrs.frozen
class IndexedVocabulary:
    """What token ids mean.

    Attributes:
        model: the model's name, as it was given.
        size: ids are 0 to `size - 1`.
        sha256: of all tokens with their ids.
    """

    model: str
    size: int
    sha256: str

    @property
    def end(self) -> int:
        """The number that stands behind each document."""
        return self.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds all ids and the end; big-endian, so that bytes are sorted as ids are."""
        return np.min_scalar_type(self.end).newbyteorder(">")


def vocabulary_of(tokenizer: Any, model: str, size: int | None = None) -> IndexedVocabulary:
    """The vocabulary of a transformers tokenizer; two with the same tokens and ids have the same hash.

    Args:
        tokenizer: it.
        model: whose it is.
        size: of that model's vocabulary; tokens that were added to the tokenizer alone are none of it. None keeps all.
    """
    own = max(tokenizer.get_vocab().values()) + 1
    return IndexedVocabulary(model, own if size is None else min(own, size), tokenizer_hash(tokenizer, size))


def tokenizer_hash(tokenizer: Any, size: int | None = None) -> str:
    """The hash of all tokens of a transformers tokenizer with their ids; those of a model's own code may be bytes.

    Args:
        tokenizer: it.
        size: of a model's vocabulary; tokens whose ids it does not have are left out. None keeps all.
    """
    ids = [each for each in tokenizer.get_vocab().items() if size is None or each[1] < size]
    text = json.dumps(sorted((token if isinstance(token, str) else repr(token), number) for token, number in ids))
    return hashlib.sha256(text.encode()).hexdigest()


@attrs.frozen
class IndexManifest:
    """What is said of an index in its folder.

    Attributes:
        model: whose tokenizer was used, as it was named.
        vocab_size: ids are 0 to `vocab_size - 1`; `vocab_size` itself stands behind each document.
        tokenizer_sha256: see `IndexedVocabulary`.
        documents: how many there are.
        tokens: of all documents, with the number behind each.
        shard_tokens: tokens of a shard, each with a suffix array of its own; the last may have fewer.
        compared: tokens by which suffixes are sorted.
        byte_order: of the suffix arrays, "little" or "big".
        sha256: of the other files, by name.
    """

    model: str
    vocab_size: int
    tokenizer_sha256: str
    documents: int
    tokens: int
    shard_tokens: int
    compared: int
    byte_order: str
    sha256: Mapping[str, str]

    @property
    def shards(self) -> int:
        """How many suffix arrays there are."""
        return -(-self.tokens // self.shard_tokens)

    @property
    def vocabulary(self) -> IndexedVocabulary:
        """What its token ids mean."""
        return IndexedVocabulary(self.model, self.vocab_size, self.tokenizer_sha256)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the other files, by name."""
        return {TOKENS: self.tokens * self.vocabulary.dtype.itemsize, SUFFIXES: self.tokens * 4}

    @property
    def fingerprint(self) -> str:
        """Tells the index from others: of all that is said of it, the hashes of its files among it."""
        return records.sha256_of(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for JSON; `from_dict` reads it."""
        return {"kind": KIND, "format": FORMAT, **records.fields_as_plain(self)}

    @classmethod
    def from_dict(cls, data: Any) -> "IndexManifest":
        """What `as_dict` gave.

        Raises:
            ValueError: if it is none, or of another version; the sentence names the field and the value.
        """
        found: IndexManifest = records.make(cls, records.of_kind(data, KIND, FORMAT), READERS, "manifest")
        return found


def _some(most: int) -> records.Reader:
    def read(value: Any) -> int:
        if (number := records.whole(value, 1)) > most:
            raise ValueError(f"is {number}; it must be at most {most}")
        return number

    return read


READERS: Mapping[str, records.Reader] = {
    "model": records.words,
    "vocab_size": _some(2**32 - 1),
    "tokenizer_sha256": records.words,
    "documents": _some(2**48),
    "tokens": _some(2**48),
    "shard_tokens": _some(MOST),
    "compared": _some(COMPARED),
    "byte_order": records.one_of("little", "big"),
    "sha256": records.table(records.words),
}


class TokenIndex:
    """The tokens of a corpus and suffix arrays over them, mapped into memory: what is not looked at stays on disk.

    Each array is over one shard of the tokens, and says where its suffixes begin, sorted. Suffixes that begin with the
    same tokens are neighbours, so a look-up is two binary searches in each shard. Suffixes go on beyond their shard:
    what is found does not depend on where shards end.

    Args:
        folder: of `write_index`.

    Raises:
        ValueError: if there is no index, it is damaged as far as sizes show, or was made on another kind of machine.
        OSError: if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        if self.manifest.byte_order != sys.byteorder:
            raise self._error(f"is of a {self.manifest.byte_order}-endian machine; build it again on this one")
        for name, size in self.manifest.sizes.items():
            found = (folder / name).stat().st_size if (folder / name).is_file() else None
            if found != size:
                is_ = "is missing" if found is None else f"has {found} bytes in place of {size}"
                raise self._error(f"is damaged: {name} {is_}; build it again")
        self._bytes = _mapped(folder / TOKENS)
        self._suffixes = memoryview(_mapped(folder / SUFFIXES)).cast("I")
        self._tokens: NDArray[Any] = np.frombuffer(self._bytes, dtype=self.manifest.vocabulary.dtype)
        self._begins: NDArray[np.uint32] = np.frombuffer(self._suffixes, dtype=np.uint32)

    def _error(self, what: str) -> ValueError:
        return ValueError(f"the datastore '{self.folder}' {what}")

    def check(self) -> None:
        """Read all of it.

        Raises:
            ValueError: if a file is not the one that was written.
        """
        for name in self.manifest.sizes:
            with (self.folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != self.manifest.sha256.get(name):
                raise self._error(f"is damaged: {name} is not as it was written; build it again")

    @cached_property
    def _shards(self) -> list[range]:
        """Where shards begin and end, in tokens, which is also where their suffix arrays do."""
        size, tokens = self.manifest.shard_tokens, self.manifest.tokens
        return [range(start, min(start + size, tokens)) for start in range(0, tokens, size)]

    def find(self, tokens: Sequence[int]) -> list[range]:
        """Where these tokens occur, as parts of the suffix arrays, which lie behind each other; none is empty.

        Args:
            tokens: 1 to `manifest.compared` ids of the vocabulary.
        """
        data, suffixes, width = self._bytes, self._suffixes, self._tokens.itemsize
        wanted = np.array(tokens, dtype=self._tokens.dtype).tobytes()
        found = []
        for shard in self._shards:
            start, size = shard.start * width, len(wanted)

            def beginning(suffix: int, start: int = start, size: int = size) -> bytes:
                place = start + suffix * width
                return data[place : place + size]

            low = bisect_left(suffixes, wanted, shard.start, shard.stop, key=beginning)
            if low < shard.stop and beginning(suffixes[low]) == wanted:
                found.append(range(low, bisect_right(suffixes, wanted, low, shard.stop, key=beginning)))
        return found

    def find_longest(self, text: Sequence[int], longest: int, shortest: int) -> tuple[int, list[range]]:
        """The longest end of a text that occurs, and where; as every shorter end occurs, too, lengths are bisected.

        Args:
            text: ids; an end with one that is not in the vocabulary occurs nowhere.
            longest: most tokens that are looked up.
            shortest: fewest, at least 1.

        Returns:
            How many tokens it has, 0 if none occurs, and what `find` says of it.
        """
        longest = min(longest, self.manifest.compared)
        ending = [*text[-longest:]]
        foreign = [place for place, token in enumerate(ending) if not 0 <= token < self.manifest.vocab_size]
        ending = ending[foreign[-1] + 1 :] if foreign else ending
        best: tuple[int, list[range]] = (0, [])
        low, high = shortest, len(ending)
        while low <= high:
            size = (low + high) // 2
            if found := self.find(ending[-size:]):
                best, low = (size, found), size + 1
            else:
                high = size - 1
        return best

    def continuations(self, found: Sequence[range], matched: int, most: int, length: int) -> IntArray:
        """What follows where tokens occur.

        Args:
            found: what `find` said, at least one part.
            matched: how many tokens were looked up.
            most: at most so many places; of more, so many that are evenly spread over what was found.
            length: tokens of each.

        Returns:
            Shape `(places, length)`, int64; `manifest.vocab_size` where the document ends, and from there on.
        """
        sizes: IntArray = np.array([len(part) for part in found], dtype=np.int64)
        ends: IntArray = sizes.cumsum()
        total = int(ends[-1])
        chosen: IntArray = np.arange(total) if total <= most else np.arange(most) * total // most
        parts = np.searchsorted(ends, chosen, side="right")  # (places,)
        starts: IntArray = np.array([part.start for part in found], dtype=np.int64) - (ends - sizes)
        suffixes = chosen + starts[parts]
        shard_starts = suffixes // self.manifest.shard_tokens * self.manifest.shard_tokens
        places = shard_starts + self._begins[suffixes].astype(np.int64) + matched
        last = self.manifest.tokens - 1  # an end of a document
        rows: IntArray = self._tokens[np.minimum(places[:, None] + np.arange(length), last)].astype(np.int64)
        rows[np.logical_or.accumulate(rows >= self.manifest.vocab_size, axis=1)] = self.manifest.vocab_size
        return rows


def read_manifest(folder: Path) -> IndexManifest:
    """What an index says of itself.

    Raises:
        ValueError: if there is no index in the folder, or it cannot be understood.
        OSError: if it cannot be read.
    """
    file = folder / MANIFEST
    if not is_index(folder):
        raise ValueError(f"'{folder}' is no datastore; give a folder of talon datastore build")
    try:
        return IndexManifest.from_dict(records.parsed(small_text(file)))
    except ValueError as error:
        raise ValueError(f"the datastore '{folder}' cannot be read: {MANIFEST}: {error}") from error


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, or what is left of one."""
    return os.path.isfile(folder / MANIFEST)


def _mapped(file: Path) -> mmap.mmap:
    with file.open("rb") as handle:
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
