"""Options that are lists of numbers, or that count nodes; single numbers are checked by `talon_core.basics`."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import attrs


def are_positive(given: object) -> bool:
    """Whether an option is one or more whole numbers, each at least 1."""
    return isinstance(given, tuple) and bool(given) and all(isinstance(n, Integral) and int(n) >= 1 for n in given)


def positive_numbers(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is not one or more whole numbers, each at least 1."""
    if not are_positive(value):
        raise ValueError(
            f"{option.name} is {value}; it must be one or more whole numbers, each at least 1, as in 3;1;1"
        )


def plus_one(number: object) -> int:
    """One node more than a number of drafted tokens: the root; 1 for what is no number, which is refused after this."""
    return 1 + int(number) if isinstance(number, Integral) else 1


def numbers_of(given: Any, kind: type, what: str, example: str) -> Any:
    """An option that is a list of numbers, written with `;` between them.

    Returns:
        The numbers as a tuple; what is neither text nor a list as it is, for a validator to refuse.

    Raises:
        ValueError: if text is given that does not say numbers.
    """
    if not isinstance(given, str):
        return tuple(given) if isinstance(given, Iterable) else given
    try:
        return tuple(kind(part) for part in given.split(";"))
    except ValueError:
        raise ValueError(f"{what} is '{given}'; it must be numbers with ; between them, as in {example}") from None
