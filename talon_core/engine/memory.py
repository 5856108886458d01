"""Whether a policy or rule can remember anything from round to round."""

from typing import Any

import attrs

from talon_core.policy import TreePolicy


def is_memoryless(part: object) -> bool:
    """Whether a policy or rule has no place to remember a round in: plain options alone, and nobody tells it of rounds.

    A part that keeps something elsewhere, as in a variable of its module, looks the same from here; so `certify` also
    enumerates whole generations, in some of its worlds.
    """
    cls: Any = type(part)
    if isinstance(part, TreePolicy) and cls.observe is not TreePolicy.observe:
        return False
    if not attrs.has(cls) or not is_frozen(part):
        return False
    return all(_is_plain(getattr(part, field.name)) for field in attrs.fields(cls))


def is_frozen(part: Any) -> bool:
    """Whether an object's attributes cannot be set."""
    try:
        setattr(part, "name", part.name)  # noqa: B010 - the assignment is what is tested
    except attrs.exceptions.FrozenInstanceError:
        return True
    except AttributeError:
        return False
    return False


def _is_plain(value: object) -> bool:
    """Whether it can never be another: a number, a text, or such in a tuple."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str)
