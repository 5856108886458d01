"""What of a policy's options can be searched: it stands in the metadata of its fields, where `talon tune` reads it."""

from typing import Any

import attrs

from talon_core.errors import is_number, written

KEY = "talon_searched"
"""In the metadata of a field."""


def _number(_: object, end: "attrs.Attribute[Any]", value: object) -> None:
    if not is_number(value) or not abs(value) < float("inf"):  # NaN is not below anything
        raise ValueError(f"{end.name} is {written(value)}; it must be a finite number")


@attrs.frozen
class Range:
    """All numbers between two.

    Attributes:
        low: the smallest.
        high: the largest.
        log: factors count, and not differences: from 1 to 10 is as far as from 10 to 100.
    """

    low: float = attrs.field(validator=_number)
    high: float = attrs.field(validator=_number)
    log: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"{self}: the first number must be below the second")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: where factors count, the first number must be above 0")

    def __str__(self) -> str:
        return f"{self.low}..{self.high}" + (":log" if self.log else "")


@attrs.frozen
class Among:
    """Some values.

    Attributes:
        values: as they are written in a spec, at least two.
    """

    values: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        if len(set(self.values)) != len(self.values) or len(self.values) < 2:
            raise ValueError(f"{self}: there must be two values or more, each once")

    def __str__(self) -> str:
        return "|".join(self.values)


def searched(low: float, high: float, *, log: bool = False) -> dict[str, Any]:
    """The metadata of an option that is a number, for `talon tune`: between which numbers it is searched.

    Written as `budget: int = attrs.field(default=60, metadata=searched(2, 64, log=True))`. Say what may be worth a try,
    and not all that is allowed; who tunes may give another range.

    Args:
        low: the smallest number that is tried.
        high: the largest.
        log: factors count, and not differences, as for a budget or a small probability.

    Raises:
        ValueError: if it is no range.
    """
    return {KEY: Range(low, high, log)}


def searched_among(*values: object) -> dict[str, Any]:
    """As `searched`, for an option that is no number: the values that are tried.

    Args:
        values: at least two; as in a spec, or what is written so there.

    Raises:
        ValueError: if these are not two values or more, each once.
    """
    return {KEY: Among(tuple(as_written(value) for value in values))}


def as_written(value: object) -> str:
    """An option's value as it is written in a spec."""
    if isinstance(value, tuple):
        return ";".join(".".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
