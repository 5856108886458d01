"""The interface of peers: other programs that decode the same prompts, so that they can be measured in the same run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

if TYPE_CHECKING:
    from talon_core.request import Request


@attrs.frozen(eq=False)
class PeerSetting:
    """What a peer is opened for, in a process of its own; TALON decodes with another copy of the model.

    Attributes:
        model: the target, loaded once more, with plain weights: a transformers causal LM.
        tokenizer: its tokenizer.
        source: where the model came from, as the user gave it: an embedded model, a folder, a GGUF file or a
            Hugging Face id.
        eos: tokens that end a text.
        room: most tokens of a prompt and its answer together, of all prompts that will come.
        threads: on how many threads of the CPU it is to compute, as TALON does.
    """

    model: Any
    tokenizer: Any
    source: str
    eos: frozenset[int]
    room: int
    threads: int

    @property
    def dtype(self) -> str:
        """The format of the target's weights, as in "float32"."""
        return str(self.model.dtype).removeprefix("torch.")


@attrs.frozen
class PeerAnswer:
    """What a peer decoded, and what it knows of how.

    Attributes:
        token_ids: the new tokens. What comes after a token that ends the text, or after the limit, is cut off.
        target_passes: forward passes of the target, the prompt's among them; None if it does not know.
        draft_passes: forward passes of a draft model; None if it does not know.
        prefill_seconds: in which it read the prompt, by its own clock; None if it does not say. The time of the whole
            call is measured, whatever it says.
    """

    token_ids: Sequence[int]
    target_passes: int | None = None
    draft_passes: int | None = None
    prefill_seconds: float | None = None


def _nothing() -> None:
    """What closing takes where nothing is held."""


@attrs.frozen(eq=False)
class PeerEngine:
    """An open peer.

    Attributes:
        decode: decodes one prompt; it is called once at a time, and its time is what counts, all of it. It reads the
            whole prompt each time: what it remembers of earlier ones, it does not use.
        version: what it is, as in "llama.cpp b4321".
        dtype: the format of the weights it computes with, as in "float32" or "q4_1".
        threads: on how many threads of the CPU it computes; None if it does not say.
        device: what it computes on.
        close: gives up what it holds.
    """

    decode: "Callable[[Request], PeerAnswer]"
    version: str
    dtype: str
    threads: int | None = None
    device: str = "cpu"
    close: Callable[[], object] = _nothing


class Peer(ABC):
    """A peer's options, as an `attrs.frozen` class, and how to open it for a model: what plugins register.

    It is opened and decodes in a process of its own, where it is found by its name and made with the same options.
    Nothing it says of its output is believed: that is compared with plain decoding's, token by token.
    """

    name: ClassVar[str]
    """What the peer is called in the registry: lower case, with dashes."""

    draws: ClassVar[bool] = False
    """Whether it can decode above temperature 0."""

    def unavailable(self) -> str | None:
        """Why it cannot run here, such as a package that is missing and what brings it; None if it can.

        Asked before a model is loaded.
        """
        return None

    @abstractmethod
    def open(self, setting: PeerSetting) -> PeerEngine:
        """Load what is needed to decode what this model decodes.

        Raises:
            ValueError: if the peer cannot decode with this model; the sentence says why.
        """
