"""What is to be decoded, and what came out."""

from collections.abc import Callable, Mapping, Set
from numbers import Real
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.basics import records
from talon_core.errors import check_made_of, is_whole, written
from talon_core.rounds import Round, Stats
from talon_core.sampling import Sampling
from talon_core.target import Target
from talon_core.tree_arrays import IntArray, ints

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.rule import Lossless

FINISH_REASONS: Mapping[str, str] = {
    "eos": "a token that ends the text",
    "length": "`max_new_tokens`, or the end of the target's context",
    "stop": "a stop string, or another stop condition",
    "time": "`max_time`",
    "interrupted": "it was closed or cancelled, left early, or failed",
}
"""Every value of `Result.finish_reason`, and what ended the text then."""

INTERRUPTED = "interrupted"
"""The value for a text that no stop condition has ended."""

Criterion = Callable[["Tensor"], bool]
"""`criterion(ids (1, length) int64) -> bool`: whether the text stops after these tokens."""


@attrs.frozen(eq=False)
class Request:
    """What is to be decoded, and when it is over.

    Attributes:
        ids: the prompt, shape `(prompt,)`, int64, at least one token.
        max_new_tokens: most tokens to emit, at least 1.
        sampling: how tokens are chosen.
        eos: tokens that end the text; the token itself is emitted.
        criteria: further stop conditions, asked after each token with everything up to it.
        seed: for sampling; None takes a fresh one.
        max_seconds: the round in which so many seconds are over, counted from the start of its prefill, is its last;
            None for no such limit.
    """

    ids: IntArray
    max_new_tokens: int
    sampling: Sampling = attrs.field(factory=Sampling)
    eos: frozenset[int] = frozenset()
    criteria: tuple[Criterion, ...] = ()
    seed: int | None = None
    max_seconds: float | None = None

    @property
    def greedy(self) -> bool:
        """Whether each token is the most likely one of the target's raw scores."""
        return not self.sampling.do_sample and not self.sampling.processors

    def limit(self, target: Target) -> int:
        """Most new tokens: `max_new_tokens`, or what the target's context leaves.

        Raises:
            ValueError: if the prompt is empty, leaves no room in the target's context, or has tokens outside the
                vocabulary; or for a field of a wrong type.
        """
        self._check_types()
        ids = self.ids
        if not len(ids):
            raise ValueError("the prompt is empty; it must have at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1")
        if ids.min() < 0 or ids.max() >= target.vocab_size:
            bad = int(ids.min() if ids.min() < 0 else ids.max())
            raise ValueError(
                f"the prompt holds token {bad}; the target's vocabulary has ids 0 to {target.vocab_size - 1}"
            )
        if target.context_length is None:
            return self.max_new_tokens
        if len(ids) >= target.context_length:
            why = f" ({target.context_reason})" if target.context_reason else ""
            raise ValueError(
                f"the prompt has {len(ids)} tokens; the target's context holds {target.context_length}{why}, "
                "the output included, so the prompt must be shorter"
            )
        return min(self.max_new_tokens, target.context_length - len(ids))

    def _check_types(self) -> None:
        ids, seconds = self.ids, self.max_seconds
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(f"ids are {written(ids)}; they must be a NumPy array of integers, of one dimension")
        if not is_whole(self.max_new_tokens):
            raise ValueError(f"max_new_tokens is {written(self.max_new_tokens)}; it must be a whole number")
        if self.seed is not None and not (is_whole(self.seed) and self.seed >= 0):
            raise ValueError(f"seed is {written(self.seed)}; it must be a whole number and at least 0, or None")
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, Real) or not seconds >= 0):
            raise ValueError(f"max_seconds is {written(seconds)}; it must be a number, at least 0, or None")
        check_made_of(Sampling, "sampling", self.sampling)
        if not isinstance(self.eos, Set) or not all(map(is_whole, self.eos)):
            raise ValueError(f"eos is {written(self.eos)}; it must be a frozenset of token ids")
        if not isinstance(self.criteria, tuple) or not all(map(callable, self.criteria)):
            raise ValueError(f"criteria is {written(self.criteria)}; it must be a tuple of functions")


@attrs.frozen(eq=False)
class Result:
    """What came out.

    Attributes:
        prompt_ids: the prompt, shape `(prompt,)`, int64.
        token_ids: the new tokens.
        text: the new tokens as text, special tokens left out; None if the decoder has no tokenizer.
        finish_reason: what ended the text: a key of `FINISH_REASONS`, "eos", "length", "stop", "time" or "interrupted".
        lossless: whether the tokens have the target's law: True where that is proved or certified, False from a decoder
            with a lossy rule, "claimed" where a plugin says so alone.
        rounds: one record per round.
        stats: totals.
    """

    prompt_ids: IntArray
    token_ids: list[int]
    text: str | None
    finish_reason: str
    lossless: "Lossless"
    rounds: list[Round]
    stats: Stats

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON; `from_dict` reads it."""
        return records.fields_as_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Result":
        """What `as_dict` gave, as it was.

        Raises:
            ValueError: if it is no result; the sentence names the field and the value.
        """
        found: Result = records.make(cls, data, READERS)
        return found


READERS: Mapping[str, records.Reader] = {
    "prompt_ids": lambda value: ints(records.wholes(value)),
    "token_ids": records.wholes,
    "text": records.maybe(records.words),
    "finish_reason": records.one_of(*FINISH_REASONS),
    "lossless": records.one_of(True, False, "claimed"),
    "rounds": records.several(Round.from_dict),
    "stats": records.one(Stats.from_dict),
}


@attrs.frozen(eq=False)
class Chunk:
    """One round as it is streamed: its new text (None without a tokenizer), tokens and record."""

    text: str | None
    round: Round
