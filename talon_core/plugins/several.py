"""Several parts in one option, as `eagle3[path=heads]+ngram`: specs joined by `+`, the options of each in brackets."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry

_PART = re.compile(r"([^\[\]+]+)(?:\[([^\[\]]*)\])?")
"""A part: its name, and its options in brackets."""

_BETWEEN = re.compile(r";(?=[^;=]*=)")
"""What stands between two options in brackets; a `;` with no option behind it is one of a list, as in `widths=3;1`."""


def split_parts(of: str, what: str, example: str) -> list[str]:
    """The parts of the option `of`, as they are written.

    Args:
        of: the option's text.
        what: what they are, in the plural, for the error.
        example: a text that would be right, likewise.

    Raises:
        ValueError: if it is no such list, or has a part twice.
    """
    found = [match.group() for match in _PART.finditer(of)]
    if not found or "+".join(found) != of or len(set(found)) < len(found):
        raise ValueError(
            f"of is '{of}'; it must be different {what} joined by '+', options in brackets, such as {example}"
        )
    return found


def spec_of(written: str) -> str:
    """The spec of one part: `talon[budget=9;mu=0.1]` is `talon:budget=9,mu=0.1`."""
    found = _PART.fullmatch(written)
    assert found is not None
    name, options = found.groups()
    return f"{name}:{_BETWEEN.sub(',', options)}" if options else str(name)


def made_parts(kind: str, written: Sequence[str], besides: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the parts describe, in order, by what is installed.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        written: as `split_parts` gives them.
        besides: what words stand for that are no specs.

    Raises:
        ValueError: for an unknown name or a bad option; the sentence says what there is.
        PluginError: if a class cannot be made for any other reason.
    """
    registry = load_registry()
    try:
        return tuple(besides[part] if part in besides else built(registry, kind, spec_of(part)) for part in written)
    except LookupError as error:
        raise ValueError(f"of: {error.args[0]}") from None
