"""Texts that drafters retrieve from: reading a corpus, and indices of its tokens on disk.

A corpus is read and tokenised piece by piece, written as one row of token ids, and sorted shard by shard into suffix
arrays, so that neither making an index nor using it takes more memory than one shard. `talon datastore` makes indices,
the drafter `datastore` uses them, and so may any other. Importing this package loads neither torch nor transformers.
"""

from talon_core.retrieval.corpus import Corpus, Piece, find_corpus, tokenised
from talon_core.retrieval.index import IndexedVocabulary, IndexManifest, TokenIndex, tokenizer_hash, vocabulary_of
from talon_core.retrieval.writing import write_index

__all__ = [
    "Corpus",
    "IndexManifest",
    "IndexedVocabulary",
    "Piece",
    "TokenIndex",
    "find_corpus",
    "tokenised",
    "tokenizer_hash",
    "vocabulary_of",
    "write_index",
]
