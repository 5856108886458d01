"""What is known of logits processors of transformers: which remember what they were called with, and which look at
scores alone."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from talon_core.errors import is_whole, naming
from talon_core.rule import AcceptanceRule
from talon_core.sampling import OF_TRANSFORMERS, Processor, Temperature

REMEMBERING = frozenset(
    {
        "DiaEOSDelayPatternLogitsProcessor",
        "HiggsAudioV2DelayPatternLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    }
)
"""Logits processors of transformers, by class, whose answers depend on what they were called with before."""

PREFIX_FREE = frozenset(
    {
        "EpsilonLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
        "MinPLogitsWarper",
        "SuppressTokensLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TypicalLogitsWarper",
    }
)
"""Logits processors of transformers, by class, that look at the scores of each row alone, at no text, and ask a device
for nothing. `EtaLogitsWarper` and `TopHLogitsWarper` are not among them: they ask whether the scores are valid, and
raise for all rows where one is not."""


def remembering(processors: Iterable[Any]) -> str | None:
    """The class of a processor that no rule that looks ahead can be used with; None if there is none."""
    for processor in _flat(processors):
        if any(cls.__name__ in REMEMBERING for cls in type(processor).__mro__):
            return type(processor).__name__
    return None


def prefix_free(processors: Iterable[Any]) -> tuple[Processor, ...] | str:
    """All of them, one after another, if they look at scores alone; otherwise the first one that may look at more.

    Only `Temperature` and the classes of `PREFIX_FREE` themselves are taken: one that inherits may do anything.

    Returns:
        Processors that can be called with many rows and no ids; or the name of a class or a function.
    """
    found = (*_flat(processors),)
    for processor in found:
        kind = type(processor)
        known = kind.__module__ == OF_TRANSFORMERS and kind.__name__ in PREFIX_FREE
        if not known and kind is not Temperature:
            return str(getattr(processor, "__name__", kind.__name__))
    return found


def temperature_and_top_k(warpers: Sequence[Processor]) -> tuple[Sequence[Processor], int] | None:
    """What is done to each score by itself, and how many of the best are left then; None where more is done.

    Args:
        warpers: as `prefix_free` gives them.

    Returns:
        A temperature, or nothing, and the k of the top-k that follows.
    """
    names = [type(warper).__name__ for warper in warpers]
    if names[-1:] != ["TopKLogitsWarper"] or names[:-1] not in ([], ["TemperatureLogitsWarper"]):
        return None
    last: Any = warpers[-1]
    if not is_whole(last.top_k) or last.top_k < 1 or last.filter_value != -math.inf:
        return None
    return warpers[:-1], last.top_k


def why_not(rule: AcceptanceRule, processor: str) -> str:
    """The beginning of the sentence that refuses it."""
    return (
        f"logits processor '{processor}' remembers what it was called with, and {naming('rule', rule)} looks at tokens "
        "that it may reject"
    )


def _flat(processors: Iterable[Any]) -> Iterator[Any]:
    """A list of processors, as transformers has it, is a processor too."""
    for processor in processors:
        if isinstance(processor, list):
            yield from _flat(processor)
        else:
            yield processor
