"""What a policy, a rule or a drafter says of itself, which the decoder and the registry rely on."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs
from hypothesis import Phase, settings
from hypothesis.errors import Flaky

from talon_core.engine.memory import is_frozen
from talon_core.errors import naming

T = TypeVar("T")


def require(holds: bool, kind: str, plugin: object, what: str) -> None:
    """Complain about a plugin's object unless something holds.

    Args:
        holds: whether it does.
        kind: a key of `talon_core.plugins.registry.KINDS`.
        plugin: the object.
        what: what is wrong, a sentence whose subject is the object.

    Raises:
        AssertionError: if it does not.
    """
    if not holds:
        raise AssertionError(f"{naming(kind, plugin)} {what}")


@contextmanager
def steady(kind: str, plugin: object, source: str) -> Iterator[None]:
    """Complain about a plugin's object if Hypothesis cannot repeat what it found.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        plugin: the object.
        source: where its randomness must come from.

    Raises:
        AssertionError: if it cannot.
    """
    try:
        yield
    except Flaky as error:
        raise AssertionError(
            f"{naming(kind, plugin)} does not do the same whenever it is given the same; "
            f"what is random must come from {source} alone"
        ) from error


def unexplained() -> list[Phase]:
    """Hypothesis's phases as they are set, but for that in which it varies each part of a failing example.

    It says which parts do not matter, and takes a hundred times as long as to find and to simplify the example.
    """
    return [phase for phase in settings().phases if phase is not Phase.explain]


def made(make: Callable[[], T]) -> T:
    """What a class or function makes.

    Raises:
        TypeError: if it is neither.
    """
    if not callable(make):
        raise TypeError(f"{make!r} is no class and no function that makes one; give its class, or lambda: {make!r}")
    return make()


def is_name(value: object) -> bool:
    """Whether something can be registered by this name."""
    return isinstance(value, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", value) is not None


def check_listed(kind: str, plugin: object) -> None:
    """Check what `talon list` tells of an object's class besides its docstring.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        plugin: the object.

    Raises:
        AssertionError: if that is no text of one line.
    """
    for what in ("purpose", "paper"):
        said: object = getattr(plugin, what)
        fits = isinstance(said, str) and said.isprintable()
        require(fits, kind, plugin, f"has {what} = {said!r}; it must be a few words, or nothing: ''")


def check_class(kind: str, plugin: object, interface: type) -> None:
    """Check that an object is of a class that can be registered.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        plugin: the object.
        interface: what it must implement.

    Raises:
        AssertionError: if it cannot.
    """
    cls: type = type(plugin)
    article = "an" if interface.__name__[0] in "AEIOU" else "a"
    require(isinstance(plugin, interface), kind, plugin, f"is not {article} {interface.__name__}")
    name = getattr(plugin, "name", None)
    require(
        is_name(name),
        kind,
        plugin,
        f"has the name {name!r}; a name is lower case letters and digits with dashes between",
    )
    require(
        attrs.has(cls) and is_frozen(plugin),
        kind,
        plugin,
        "must be an @attrs.frozen class, with options as its fields",
    )
    check_listed(kind, plugin)
    without = [field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING]
    require(not without, kind, plugin, f"has options without a default: {', '.join(without)}")
    cls()
