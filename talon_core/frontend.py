"""The interface between a decoder and its user: prompts and options in, text out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.request import Request
    from talon_core.tree import IntArray


class TextStream(ABC):
    """Turns a growing sequence of tokens into pieces of text that join to the whole."""

    @abstractmethod
    def push(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with these tokens; never half a character."""

    @abstractmethod
    def end(self) -> str:
        """What was held back."""


class Frontend(ABC):
    """Prepares requests for one target, and shows its tokens as text."""

    @abstractmethod
    def request(
        self, prompt: "str | list[dict[str, str]] | IntArray | Tensor", options: Mapping[str, Any]
    ) -> "Request":
        """Make a request.

        Args:
            prompt: text (put through the chat template of an instruct model unless the option `raw` is true), chat
                messages, or token ids of shape `(prompt,)`.
            options: what the user has asked for beside the prompt, by name.

        Raises:
            ValueError: for a bad prompt or option; the sentence says what would be right.
        """

    @abstractmethod
    def text(self, token_ids: Sequence[int]) -> str | None:
        """Tokens as text, special tokens left out; None if there is no tokenizer."""

    @abstractmethod
    def text_stream(self) -> TextStream | None:
        """A new stream for one generation; None if there is no tokenizer."""
