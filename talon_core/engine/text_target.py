"""The target that a drafter of texts is opened for where there is no model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from talon_core.target import ALL_WALKED, NOT_GREEDY, NOTHING_DRAWN, Further, NodeDraws, Target, Verified
from talon_core.tree import IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor


class TextTarget(Target):
    """A target of which nothing is known but its vocabulary. It cannot be asked anything.

    Args:
        vocab_size: likewise.
        tokenizer_sha256: likewise.
    """

    context_length = None

    def __init__(self, vocab_size: int, tokenizer_sha256: str | None = None) -> None:
        self.vocab_size = vocab_size
        self._tokenizer_sha256 = tokenizer_sha256

    @property
    def tokenizer_sha256(self) -> str | None:
        return self._tokenizer_sha256

    def _refused(self) -> RuntimeError:
        return RuntimeError("there is no model here; a drafter with reads_texts = True must not ask the target")

    def open(self, slot: int, room: int) -> None:
        raise self._refused()

    def close(self, slot: int) -> None:
        raise self._refused()

    def read(self, parts: Mapping[int, IntArray]) -> Mapping[int, "Tensor | None"]:
        raise self._refused()

    def verify(
        self,
        trees: Mapping[int, TokenTree],
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        further: Further | None = None,
    ) -> Verified:
        raise self._refused()

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        raise self._refused()
