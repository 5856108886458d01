"""Tokens as text, as far as the run's tokenizer is there."""

from collections.abc import Sequence
from typing import Any

from talon_core.pictures.render import visible


class Texts:
    """What tokens say.

    Args:
        tokenizer: the run's; None shows tokens by their ids.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer

    @property
    def known(self) -> bool:
        """Whether there is a text at all."""
        return self._tokenizer is not None

    def token(self, token: int) -> str:
        """One token on one line, with white space made visible."""
        from talon_core.models.loading import token_text

        return str(token) if self._tokenizer is None else visible(token_text(self._tokenizer, token))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text that each token adds to those before it; together they are the whole text.

        A character of several tokens is the last one's.
        """
        if self._tokenizer is None:
            return [f"{token} " for token in tokens]
        from talon_core.hf.text import DecodedStream

        tokenizer = self._tokenizer
        stream = DecodedStream(tokenizer, lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True)))
        found = [stream.push([token]) for token in tokens]
        if found:
            found[-1] += stream.end()
        return found
