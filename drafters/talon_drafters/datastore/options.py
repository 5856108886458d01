"""The drafter that retrieves what followed the same tokens in a corpus."""

from pathlib import Path
from typing import Any

import attrs
from attrs.validators import ge, le

from talon_core.basics.option_checks import text, whole_number
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target


def _as_text(given: Any) -> Any:
    return str(given) if isinstance(given, Path) else given


@attrs.frozen
class Datastore(DrafterSpec):
    """Retrieves what followed the same tokens in a corpus of the user's own (REST, arXiv 2311.08252, section 3).

    `talon datastore build` makes the index. Once a round the last `longest` tokens of the text are looked up in it,
    then fewer, down to `shortest`; the first number of tokens that occurs at all counts. Of the places where they
    occur `matches` at most are taken, and the `length` tokens after each. All beginnings of these continuations are
    counted, and the `nodes` most frequent form a trie; equally frequent ones are taken shorter first. In the draft
    tree a node's children are those of the trie. Their probabilities are their shares of the continuations that pass
    through the node, and what is left goes to all tokens evenly.

    The defaults are REST's. There every shard of the index gives its first `matches` places in the order of the suffix
    array, which are those that go on with the lowest token ids; here they are `matches` of all shards together, evenly
    spread over that order, so that the counts are in proportion.

    REST's own release is biased above temperature 0: each row of its table of paths draws tokens of its own, and the
    longest match wins. Here the target draws once at each node it visits, as with every drafter, and the output has
    exactly the target's law.

    Attributes:
        path: a folder of `talon datastore build`, made with the target's tokenizer.
        longest: most tokens that are looked up.
        shortest: fewest tokens that are looked up.
        matches: most places whose continuations are counted.
        length: tokens of a continuation.
        nodes: most nodes of the trie, the root not counted.
    """

    name = "datastore"
    purpose = "look-ups"
    paper = "arXiv 2311.08252"
    reads_texts = True
    path: str = attrs.field(converter=_as_text, validator=text)
    longest: int = attrs.field(default=16, validator=[whole_number, ge(1), le(16)])
    shortest: int = attrs.field(default=2, validator=[whole_number, ge(1)])
    matches: int = attrs.field(default=5000, validator=[whole_number, ge(1), le(1_000_000)])
    length: int = attrs.field(default=10, validator=[whole_number, ge(1), le(1000)])
    nodes: int = attrs.field(default=64, validator=[whole_number, ge(1), le(100_000)])

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(f"shortest must be at most longest, {self.longest}, not {self.shortest}")

    @classmethod
    def of_files(cls, path: str) -> "Datastore | None":
        from talon_core.retrieval.index import TokenIndex, is_index

        if not is_index(Path(path)):
            return None
        TokenIndex(Path(path))
        return cls(path)

    def files_hash(self) -> str:
        """As the index says it in its folder; its files, which may be large, are not read."""
        from talon_core.retrieval.index import read_manifest

        return read_manifest(Path(self.path)).fingerprint

    def open(self, target: Target) -> Drafter:
        """Map the index into memory, and see whether it is of the target's vocabulary."""
        from talon_drafters.datastore.drafter import open_datastore

        return open_datastore(self, target)
