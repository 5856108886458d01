"""Tokens as text while they come, piece by piece, so that the pieces join to the text of the whole."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from talon_core.frontend import TextStream

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""A token of a vocabulary with byte fallback that stands for one byte of a character."""


class DecodedStream(TextStream):
    """Decodes from the last piece that was certain, so that spaces and multi-byte characters come out right.

    A token's text may depend on its left neighbours, so each piece is the difference of two decodings that start a
    little before it. Two things are held back: text that ends in the replacement character, which is an unfinished
    character; and tokens that stand for single bytes until one of another kind ends their run, because a run is decoded
    as a whole: a byte that does not fit makes replacement characters of those before it, too.

    Args:
        tokenizer: of transformers.
        decode: tokens to text, special ones left out.
    """

    def __init__(self, tokenizer: Any, decode: Callable[[Sequence[int]], str]) -> None:
        self._tokenizer = tokenizer
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0  # first token that is decoded
        self._shown = 0  # tokens whose text is out

    def push(self, token_ids: Sequence[int]) -> str:
        self._ids.extend(token_ids)
        end = self._certain()
        now = self._decode(self._ids[self._context : end])
        return "" if now.endswith("�") else self._piece(now, end)

    def end(self) -> str:
        return self._piece(self._decode(self._ids[self._context :]), len(self._ids))

    def _piece(self, now: str, end: int) -> str:
        before = self._decode(self._ids[self._context : self._shown])
        if len(now) <= len(before):
            return ""
        self._context, self._shown = self._shown, end
        return now[len(before) :]

    def _certain(self) -> int:
        """How many tokens there are before a run of bytes at the end; tokens without a text do not end a run."""
        end = start = len(self._ids)
        while start > self._shown:
            token = self._ids[start - 1]
            if BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))):
                end = start - 1
            elif self._decode([token]):
                break
            start -= 1
        return end
