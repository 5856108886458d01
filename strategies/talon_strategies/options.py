"""Checks of options that are given from Python, where anything may be given; ranges are checked by attrs' own."""

from numbers import Integral, Real
from typing import Any

import attrs


def whole_number(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is no whole number; `True` is none either."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{option.name} is {value!r}; it must be a whole number")  # noqa: TRY004 - as for every option


def number(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is no number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{option.name} is {value!r}; it must be a number")  # noqa: TRY004 - as for every option
