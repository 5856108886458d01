"""Logits processors that remember what they were called with: rules that look ahead must not call them."""

from collections.abc import Iterable, Iterator
from typing import Any

from talon_core.errors import naming
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule

REMEMBERING = frozenset(
    {
        "DiaEOSDelayPatternLogitsProcessor",
        "HiggsAudioV2DelayPatternLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
        "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    }
)
"""Logits processors of transformers, by class, whose answers depend on what they were called with before."""


def remembering(rule: AcceptanceRule, policy: TreePolicy | None, processors: Iterable[Any]) -> str | None:
    """The class of a processor that the rule cannot be used with; None if there is none.

    Args:
        rule: the acceptance rule.
        policy: the tree policy; None decodes without drafting, and there is nothing ahead then.
        processors: those of a request.
    """
    if policy is None or not rule.looks_ahead:
        return None
    for processor in _flat(processors):
        if any(cls.__name__ in REMEMBERING for cls in type(processor).__mro__):
            return type(processor).__name__
    return None


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
