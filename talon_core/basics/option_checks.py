"""Checks of options that are given from Python, where anything may be given; ranges are checked by attrs' own."""

import math
from numbers import Integral, Real
from typing import Any

import attrs


def whole_number(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is no whole number; `True` is none either."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{option.name} is {value!r}; it must be a whole number")  # noqa: TRY004 - as for every option


def number(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is no number, or none that can be computed with."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{option.name} is {value!r}; it must be a number")  # noqa: TRY004 - as for every option
    if math.isinf(value):  # NaN is out of every range
        raise ValueError(f"{option.name} is {value!r}; it must be a finite number")


def yes_or_no(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise ValueError(f"{option.name} is {value!r}; it must be True or False")  # noqa: TRY004 - as for every option


def text(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is no text."""
    if not isinstance(value, str):
        raise ValueError(f"{option.name} is {value!r}; it must be text")  # noqa: TRY004 - as for every option


def whole_numbers(_: object, option: "attrs.Attribute[Any]", value: object) -> None:
    """Refuse what is no tuple of whole numbers; it may be empty."""
    whole = isinstance(value, tuple) and all(isinstance(one, Integral) and not isinstance(one, bool) for one in value)
    if not whole:
        raise ValueError(f"{option.name} is {value!r}; it must be whole numbers")
