"""Numbers as people read and write them; Python's own reading takes `1_000`, and the digits of every script."""

import math
import re
import sys

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST = 400
"""Digits; Python refuses to read thousands of them with an error of its own."""

LARGEST = 2**63 - 1
"""Of whole numbers that are given as options: what arrays of them can hold."""

LEAST_TEMPERATURE = 1e-30
"""Scores of a hundred million divided by it are still numbers in float32, in which models compute them."""


TEMPERATURES = f"0 (greedy), or a finite number of at least {LEAST_TEMPERATURE:g}"
"""What temperatures are."""


def counted(number: int, noun: str) -> str:
    """So many of something: "1 text", "2 texts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rounded(value: float, digits: int = 3) -> str:
    """A number with so many digits that count, and without an exponent: "0.0123", "1.98", "2,930"."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    said = f"{round(value, places):,.{max(places, 0)}f}"
    return said.rstrip("0").rstrip(".") if "." in said else said


def fault_of_temperature(value: float) -> str | None:
    """What is wrong with a temperature, as the end of a sentence; None if nothing is."""
    if value == 0 or LEAST_TEMPERATURE <= value <= sys.float_info.max:
        return None
    return f"it must be {TEMPERATURES}"


def whole(text: str) -> int:
    """A whole number.

    Raises:
        ValueError: if the text is none.
    """
    text = text.strip()
    if len(text) > _LONGEST or not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def decimal(text: str) -> float:
    """A finite number.

    Raises:
        ValueError: if the text is none, or too large to be one.
    """
    text = text.strip()
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError(text)
    return value
