"""Spec strings: `name` or `name:option=value,option=value`, for everything that is registered."""

import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from talon_core.basics.numerals import LARGEST, decimal, whole
from talon_core.basics.suggestions import did_you_mean
from talon_core.errors import PluginError
from talon_core.plugins.registry import KINDS, Registered, Registry, making_parts
from talon_core.searching import as_written


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Split a spec into its name and its options, still as text.

    Raises:
        ValueError: if an option has no value or is given twice.
    """
    name, _, rest = spec.partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        option, equals, value = part.partition("=")
        option = option.strip().replace("-", "_")
        if not equals or not option:
            raise ValueError(f"'{part}' in '{spec}' is no option; options are written name:option=value,option=value")
        if option in options:
            raise ValueError(f"option '{option}' is given twice in '{spec}'")
        options[option] = value.strip()
    return name.strip(), options


def join_spec(name: str, options: Mapping[str, Any]) -> str:
    """The spec of a name and its options, which `parse_spec` takes apart again."""
    return f"{name}:{','.join(f'{option}={value}' for option, value in options.items())}" if options else name


def build(registry: Registry, kind: str, spec: str) -> Any:
    """Make the object that a spec describes.

    Args:
        registry: where to look the name up.
        kind: a key of `talon_core.plugins.registry.KINDS`.
        spec: for example `talon:budget=60,mu=0.03`.

    Raises:
        LookupError: for an unknown name.
        ValueError: for an unknown or missing option or a bad value; the sentence says what would be right.
        PluginError: if the class cannot be made for any other reason.
    """
    name, texts = parse_spec(spec)
    registered = registry.get(kind, name)
    cls = registered.cls
    fields = option_fields(registered)
    values: dict[str, Any] = {}
    for option, text in texts.items():
        if option not in fields:
            raise ValueError(unknown_option(kind, name, option, fields))
        values[option] = _convert(kind, name, fields[option], text)
    missing = [option for option, field in fields.items() if field.default is attrs.NOTHING and option not in values]
    if missing:
        raise ValueError(f"{kind} '{name}' needs a value for {', '.join(missing)}, as in {name}:{missing[0]}=...")
    try:
        with making_parts(registry):
            return cls(**values)
    except (ValueError, TypeError) as error:  # attrs' validators put the sentence first, then what they looked at
        raise ValueError(f"{kind} '{name}': {error.args[0] if error.args else error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _broken(registered, error) from error


def option_fields(registered: Registered) -> "dict[str, attrs.Attribute[Any]]":
    """A registered class's fields that can be given, by the name they are given by.

    Raises:
        PluginError: if their types are not known; the message names the class.
    """
    if not attrs.has(registered.cls):
        return {}  # it is made without options
    try:
        fields = attrs.fields(attrs.resolve_types(registered.cls))
    except Exception as error:
        raise _broken(registered, error) from error
    return {field.alias: field for field in fields if field.init}


def unknown_option(kind: str, name: str, option: str, known: Iterable[str]) -> str:
    """The sentence for an option that there is not."""
    names = list(known)
    hint = did_you_mean(option, names)
    return f"{kind} '{name}' has no option '{option}'; {hint}it has: {', '.join(names) or 'no options'}"


def _broken(registered: Registered, error: BaseException) -> PluginError:
    return PluginError(
        f"{registered.kind} '{registered.name}' of {registered.plugin} cannot be made: {type(error).__name__}: {error}"
    )


def _convert(kind: str, name: str, field: "attrs.Attribute[Any]", text: str) -> Any:
    """An option's text as its field's type; types other than these are left to the field's own converter."""
    allowed = types_of(field.type)
    if type(None) in allowed and text.lower() == "none":
        return None
    for kind_of, convert in ((bool, _bool), (int, whole), (float, _float)):
        if kind_of in allowed:
            wanted = _WANTED[kind_of]
            try:
                value: object = convert(text)
            except ValueError:
                if str in allowed:
                    return text
            else:
                if not isinstance(value, int) or abs(value) <= LARGEST:
                    return value
                wanted += f" of at most {LARGEST}"
            raise ValueError(f"option '{field.alias}' of {kind} '{name}' is '{text}'; it must be {wanted}")
    return text


def types_of(annotation: Any) -> tuple[Any, ...]:
    """The types that a field takes, by its annotation."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError(text)


def _float(text: str) -> float:
    """What is written out as no finite number is left to the option, which may mean "no limit" by it."""
    return float(text) if text.lower() in ("nan", "inf", "-inf") else decimal(text)


_WANTED = {bool: "true or false", int: "a whole number", float: "a number"}


def describe_options(cls: type) -> dict[str, Any]:
    """A registered class's options and their defaults; required ones have the default `attrs.NOTHING`.

    A default that is worked out from other options is None here. A class that is no attrs class has no options.

    Raises:
        PluginError: if a default cannot be made; the message names the class and the option.
    """
    options: dict[str, Any] = {}
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        if field.init:
            default = field.default
            if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
                default = None if default.takes_self else _default(cls, field)
            options[field.alias] = default
    return options


def _default(cls: type, field: "attrs.Attribute[Any]") -> Any:
    factory: Any = field.default
    try:
        return factory.factory()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(
            f"{cls.__module__}.{cls.__qualname__} has an option '{field.alias}' whose default cannot be made: "
            f"{type(error).__name__}: {error}"
        ) from error


def spelled(made: Any) -> str:
    """A registered object as a spec: its name and the options that differ from their defaults."""
    return join_spec(_name(made), _given(made))


def as_part(made: Any) -> str:
    """A registered object as it is named within another: as `spelled`, with the options in brackets, `;` between."""
    written = ";".join(f"{option}={value}" for option, value in _given(made).items())
    return f"{_name(made)}[{written}]" if written else _name(made)


def _name(made: Any) -> str:
    return str(getattr(made, "name", type(made).__name__))


def _given(made: Any) -> dict[str, str]:
    """The options of a registered object that differ from their defaults, as they are written."""
    cls = type(made)
    defaults = describe_options(cls)
    given: dict[str, str] = {}
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        if not field.init:
            continue
        value: Any = getattr(made, field.name)
        default: Any = defaults[field.alias]
        if isinstance(field.default, attrs.Factory) and field.default.takes_self:  # type: ignore[arg-type]
            continue  # it is worked out from other options
        if callable(field.converter) and isinstance(default, str):
            default = field.converter(default)
        if not np.array_equal(value, default):
            given[field.alias] = _as_option(value)
    return given


_PARTS = tuple(interface for _, interface in KINDS.values())
"""What can be registered, and so be written as a spec."""


def _as_option(value: object) -> str:
    """An option's value as it is written in a spec; one part or several as `talon_core.plugins.nested` reads them."""
    parts = value if isinstance(value, tuple) else (value,)
    if parts and all(isinstance(part, _PARTS) for part in parts):
        return "+".join(map(as_part, parts))
    return as_written(value)
