"""How much an engine takes on at a time."""

from typing import Any

import attrs

from talon_core.errors import is_whole, written

PROMPT_TOKENS = 256
"""Tokens of prompts that are read in a step, where other sequences wait for their round."""


def _counts(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if value is not None and (not is_whole(value) or value < 1):
        raise ValueError(f"{field.name} is {written(value)}; it must be a whole number and at least 1")


def _is_bool(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"{field.name} is {written(value)}; it must be True or False"
        )


@attrs.frozen
class Bounds:
    """How much an engine takes on at a time; what does not fit now waits.

    Attributes:
        slots: sequences at a time; None for as many as there are.
        rows: rows of keys and values for all slots together, a row for each token, as the target counts them
            (`Target.rows`), and what the drafter's own caches take as so many of these (`Drafter.rows`); None for as
            many as the memory here would hold if there were nothing else (`Target.most_rows`). A sequence is let in
            with room for its prompt, its new tokens and the largest tree, and one that can never fit is refused.
        prompt_tokens: tokens of prompts that are read in a step where other sequences have a round in it; None for all.
        keep: keep the keys and values of texts that are over until their slot is needed, so that the next prompt that
            begins in the same way, as the next turn of a conversation does, is read from there on.
    """

    slots: int | None = attrs.field(default=None, validator=_counts)
    rows: int | None = attrs.field(default=None, validator=_counts)
    prompt_tokens: int | None = attrs.field(default=PROMPT_TOKENS, validator=_counts)
    keep: bool = attrs.field(default=True, validator=_is_bool)
