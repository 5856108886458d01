"""Records as plain data: what JSON knows, and back again without a digit lost.

A record has no version number of its own: a text has thousands of them. The file that keeps them has one. A field that
is added later has a default, and is then not asked for in older data; a field that is not known is refused by name, so
nothing is ever read as something else.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import attrs
import numpy as np

from talon_core.errors import written

Reader = Callable[[Any], Any]
"""From what JSON knows to a field's value; raises ValueError with the end of a sentence about the field."""

UNUSUAL = ("NaN", "Infinity", "-Infinity")
"""How numbers are written that JSON has no word for."""
MOST = np.iinfo(np.int64).max


def _as_dict(value: Any) -> Any:
    return value.as_dict()


def as_plain(value: Any, otherwise: Callable[[Any], Any] = _as_dict) -> Any:
    """A value out of dictionaries, lists, text, numbers, true, false and None.

    Arrays become lists, and numbers that JSON has no word for one of `UNUSUAL`.

    Args:
        value: anything.
        otherwise: makes plain data of what is none of these; by default its `as_dict`.
    """
    if isinstance(value, np.ndarray | np.generic):
        return as_plain(value.tolist(), otherwise)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else _unusual(number)
    if isinstance(value, list | tuple):
        return [as_plain(each, otherwise) for each in value]
    if isinstance(value, Mapping):
        return {str(key): as_plain(each, otherwise) for key, each in value.items()}
    return otherwise(value)


def _unusual(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def of_kind(data: Any, kind: str, number: int) -> dict[str, Any]:
    """What a file holds that says of itself what it is, without its `kind` and its `format`.

    Args:
        data: out of JSON.
        kind: what it must be.
        number: of the format that this version reads.

    Raises:
        ValueError: if it is something else, or of another version.
    """
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise ValueError(f"it must say that its kind is '{kind}'")
    if data.get("format") != number:
        raise ValueError(f"it has format {written(data.get('format'))}; this version reads format {number}")
    return {name: value for name, value in data.items() if name not in ("kind", "format")}


def fields_as_plain(record: Any) -> dict[str, Any]:
    """All fields of an attrs class, by name."""
    return {field.name: as_plain(getattr(record, field.name)) for field in attrs.fields(type(record))}


def make(cls: type, data: Any, readers: Mapping[str, Reader], called: str | None = None) -> Any:
    """The record out of plain data.

    Args:
        cls: an attrs class.
        data: what its `as_dict` gave.
        readers: for each field what reads it.
        called: what the sentence calls it; the class's name by default, and nothing where the caller's own says it.

    Raises:
        ValueError: if it is no such record; the sentence names the field and the value.
    """
    kind = cls.__name__ if called is None else called
    if not isinstance(data, Mapping):
        raise _no(kind, f"{written(data)} is no dictionary; give what as_dict gave")
    fields: Any = attrs.fields(cls)
    missing = [field.name for field in fields if field.default is attrs.NOTHING and field.name not in data]
    if missing:
        raise _no(kind, f"{_are(missing)} missing; it has {_listed(data)}")
    unknown = [name for name in data if name not in readers]
    if unknown:
        raise _no(kind, f"{_are(unknown)} not known; there are {_listed(readers)}")
    found = {}
    for name, value in data.items():
        try:
            found[name] = readers[name](value)
        except ValueError as error:
            raise _no(kind, f"'{name}' {error}") from None
    try:
        return cls(**found)
    except ValueError as error:
        raise _no(kind, error) from None


def sha256_of(data: Any) -> str:
    """The SHA-256 of plain data, in hexadecimal digits; the order of a dictionary's keys changes nothing."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def parsed(text: str) -> Any:
    """What a text of JSON says.

    Raises:
        ValueError: if it is none.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def whole(value: Any, least: int = 0) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise _unfit(value, f"a whole number of at least {least}")
    return value


def wholes(value: Any, least: int = 0) -> list[int]:
    """A list of whole numbers of at least `least`."""
    if not isinstance(value, list):
        raise _unfit(value, "a list of whole numbers")
    for place, each in enumerate(value):
        if isinstance(each, bool) or not isinstance(each, int) or not least <= each <= MOST:
            raise ValueError(f"has {written(each)} at {place}; it must hold whole numbers of at least {least}")
    return value


def number(value: Any) -> float:
    """Any number."""
    if value in UNUSUAL or (isinstance(value, int | float) and not isinstance(value, bool)):
        try:
            return float(value)
        except OverflowError:
            pass
    raise _unfit(value, "a number")


def numbers(value: Any) -> list[float]:
    """A list of any numbers."""
    if not isinstance(value, list):
        raise _unfit(value, "a list of numbers")
    found = []
    for place, each in enumerate(value):
        try:
            found.append(number(each))
        except ValueError:
            raise ValueError(f"has {written(each)} at {place}; it must hold numbers") from None
    return found


def amount(value: Any) -> float:
    """A number from 0 to 1e15: nothing that is measured is larger, and sums and products of these are finite."""
    found = number(value)
    if not 0 <= found <= 1e15:
        raise _unfit(value, "a finite number from 0 to 1e15")
    return found


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _unfit(value, "true or false")
    return value


def one_of(*allowed: Any) -> Reader:
    """One of these values."""

    def read(value: Any) -> Any:
        for each in allowed:
            if type(value) is type(each) and value == each:
                return each
        raise _unfit(value, f"one of {', '.join(map(json.dumps, allowed))}")

    return read


def words(value: Any) -> str:
    """Text."""
    if not isinstance(value, str):
        raise _unfit(value, "text")
    return value


def texts(value: Any) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _unfit(value, "a list of texts")
    return value


def maybe(read: Reader) -> Reader:
    """None, or what this reads."""
    return lambda value: None if value is None else read(value)


def dictionary(value: Any) -> dict[str, Any]:
    """A dictionary of anything."""
    if not isinstance(value, dict):
        raise _unfit(value, "a dictionary")
    return value


def dictionaries(value: Any) -> list[dict[str, Any]]:
    """A list of dictionaries of anything."""
    if not isinstance(value, list):
        raise _unfit(value, "a list")
    for place, each in enumerate(value):
        if isinstance(each, dict):
            continue
        raise ValueError(f"has {written(each)} at {place}; it must hold dictionaries")
    return value


def table(read: Reader) -> Reader:
    """Reads a dictionary whose values this reads."""

    def reader(value: Any) -> dict[str, Any]:
        found = {}
        for name, each in dictionary(value).items():
            try:
                found[name] = read(each)
            except ValueError as error:
                raise ValueError(f"has a {written(name)} that {error}") from None
        return found

    return reader


def holding(readers: Mapping[str, Reader]) -> Reader:
    """Reads a dictionary that has at least these fields; what else is in it stays."""

    def reader(value: Any) -> dict[str, Any]:
        found = dictionary(value)
        for name, read in readers.items():
            if name not in found:
                raise ValueError(f"has no '{name}'")
            try:
                read(found[name])
            except ValueError as error:
                raise ValueError(f"has a '{name}' that {error}") from None
        return found

    return reader


def one(read: Reader) -> Reader:
    """Reads another record, whose complaint is then part of the sentence."""

    def reader(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"is {error}") from None

    return reader


def several(read: Reader) -> Reader:
    """Reads a list of other records."""

    def reader(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _unfit(value, "a list")
        found = []
        for place, each in enumerate(value):
            try:
                found.append(read(each))
            except ValueError as error:
                raise ValueError(f"has at {place} {error}") from None
        return found

    return reader


def _no(kind: str, why: object) -> ValueError:
    return ValueError(f"no {kind}: {why}" if kind else str(why))


def _unfit(value: Any, what: str) -> ValueError:
    return ValueError(f"is {written(value)}; it must be {what}")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def _are(names: Sequence[Any]) -> str:
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'}"
