"""The running side of `datastore`: the end of a text, looked up in the index."""

from functools import partial
from pathlib import Path

from talon_core.drafter import Drafter
from talon_core.models.loading import load_tokenizer
from talon_core.retrieval.index import TokenIndex, tokenizer_hash
from talon_core.target import Target
from talon_core.tree import IntArray
from talon_drafters.datastore.options import Datastore
from talon_drafters.lookup import Lookup, LookupDrafter, Trie


def open_datastore(options: Datastore, target: Target) -> Drafter:
    """The drafter with these options.

    A target that has no tokenizer, and none that can be found by its model's name, is asked for the size of its
    vocabulary alone.

    Raises:
        ValueError: if there is no index, it is damaged, or it was made with another tokenizer than the target's.
    """
    index = TokenIndex(Path(options.path))
    check_vocabulary(index, target)
    manifest = index.manifest
    said = {
        "model": manifest.model,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "shards": manifest.shards,
        "bytes": sum(manifest.sizes.values()),
    }
    return LookupDrafter(partial(Retrieval, options, index), target.vocab_size, options.length, said)


def check_vocabulary(index: TokenIndex, target: Target) -> None:
    """Refuse an index whose token ids mean something else to the target.

    Raises:
        ValueError: if they do.
    """
    made = f"the datastore '{index.folder}' was made with the tokenizer of '{index.manifest.model}'"
    build = "build one with --model"
    if index.manifest.vocab_size > target.vocab_size:
        raise ValueError(
            f"{made}, which has {index.manifest.vocab_size} tokens; the target has {target.vocab_size}: {build}"
        )
    found = target.tokenizer_sha256 or _hash_by_name(target)
    if found is not None and found != index.manifest.tokenizer_sha256:
        raise ValueError(f"{made}, and the target has another one: {build}")


def _hash_by_name(target: Target) -> str | None:
    """The hash of the tokenizer that lies where the target's model was loaded from; None where there is none."""
    name = getattr(getattr(target, "model", None), "name_or_path", "")
    if not name:
        return None
    try:
        return tokenizer_hash(load_tokenizer(name), target.vocab_size)
    except ValueError:  # weights in a folder without one
        return None


class Retrieval(Lookup):
    """The last tokens of a text, as many as are looked up."""

    def __init__(self, options: Datastore, index: TokenIndex) -> None:
        self._options = options
        self._index = index
        self._ending: list[int] = []

    def append(self, tokens: IntArray) -> None:
        longest = self._options.longest
        self._ending = [*self._ending, *tokens[-longest:].tolist()][-longest:]

    def find(self) -> Trie:
        return self._looked_up(self._options.length, self._options.nodes)

    def guess(self) -> Trie:
        return self._looked_up(1, 1)

    def _looked_up(self, length: int, nodes: int) -> Trie:
        options, index = self._options, self._index
        matched, found = index.find_longest(self._ending, options.longest, options.shortest)
        if not found:
            return Trie()
        rows = index.continuations(found, matched, options.matches, length)
        return Trie.most_frequent(rows, index.manifest.vocab_size, nodes, matched)
