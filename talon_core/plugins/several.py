"""Several parts in one option, as `eagle3[path=heads]+ngram`, found where the part was that has the option."""

from collections.abc import Mapping, Sequence
from typing import Any

from talon_core.plugins import nested
from talon_core.plugins.parts import built
from talon_core.plugins.registry import registry_of_parts


def split_parts(of: str, what: str, example: str) -> list[str]:
    """The parts of the option `of`, as they are written.

    Args:
        of: the option's text.
        what: what they are, in the plural, for the error.
        example: a text that would be right, likewise.

    Raises:
        ValueError: if it is no such list, or has a part twice.
    """
    found = nested.parts_in(of)
    if found is None or len(set(found)) < len(found):
        raise ValueError(
            f"of is '{of}'; it must be different {what} joined by '+', options in brackets, such as {example}"
        )
    return found


def made_parts(kind: str, written: Sequence[str], besides: Mapping[str, Any], option: str = "of") -> tuple[Any, ...]:
    """What the parts describe, in order, found in `registry_of_parts`.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        written: as `split_parts` gives them.
        besides: what words stand for that are no specs.
        option: in which they are written, for the error.

    Raises:
        ValueError: for an unknown name or a bad option; the sentence says what there is.
        PluginError: if a class cannot be made for any other reason.
    """
    registry = registry_of_parts()
    try:
        return tuple(
            besides[part] if part in besides else built(registry, kind, nested.part_spec(part), [*besides])
            for part in written
        )
    except LookupError as error:
        raise ValueError(f"{option}: {error.args[0]}") from None


def made_part(kind: str, given: str, option: str, what: str, example: str) -> Any:
    """What one part describes.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        given: the option's text.
        option: in which it is written, for the error.
        what: what it is, likewise.
        example: a text that would be right, likewise.

    Raises:
        ValueError: if it is no part, or several; and as `made_parts` does.
        PluginError: as there.
    """
    parts = nested.parts_in(given)
    if parts is None or len(parts) != 1:
        raise ValueError(f"{option} is '{given}'; it must be {what}, its options in brackets, as {example}")
    (found,) = made_parts(kind, parts, {}, option)
    return found
