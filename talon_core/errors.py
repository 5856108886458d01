"""Errors that name a plugin, and what sentences about errors are made of."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TypeGuard

import numpy as np

LONGEST = 100
"""Characters of a value that a sentence shows."""

WHOLE = (int, np.integer)
NUMBERS = (*WHOLE, float, np.floating)  # tuples: `int | float` would be made anew at every question


class PluginError(RuntimeError):
    """A plugin broke its contract. The message names the plugin, what it did and what would be right."""


class LostError(RuntimeError):
    """A process that works for this one has ended, does not answer any more, or has failed at what it was asked."""


class BusyError(RuntimeError):
    """A model is being decoded at this moment, or others have all of its memory; it is free again later."""


def naming(kind: str, plugin: object) -> str:
    """How an error calls a plugin's object, or its class: its kind, registered name and class."""
    cls = plugin if isinstance(plugin, type) else type(plugin)
    return f"{kind} '{_name(plugin, cls)}' ({cls.__module__}.{cls.__qualname__})"


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a plugin has given a whole number; True and False are none."""
    return isinstance(value, WHOLE) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether somebody has given a number; True and False are none."""
    return isinstance(value, NUMBERS) and not isinstance(value, bool)


def written(value: object) -> str:
    """A value that somebody gave, for an error's sentence: as Python writes it, shortened, or its type."""
    try:
        text = repr(value)
    except Exception:
        text = ""
    if not text or "\n" in text:
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def one_line(error: object) -> str:
    """What an error says, without line breaks and control characters; its type if it says nothing."""
    return printable(" ".join(_said(error).split())) or type(error).__name__


def printable(text: str) -> str:
    """Text with what a terminal would obey, and not show, written as Python writes it."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def first_line(error: object) -> str:
    """The first line of what an error says, without the full stop; its type if it says nothing."""
    lines = _said(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


def _said(error: object) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def _name(plugin: object, cls: type) -> str:
    try:
        name = getattr(plugin, "name", None)
    except Exception:  # an error is being made already, and it must not become this one
        name = None
    return name if isinstance(name, str) else cls.__name__


def _nobodys(error: BaseException) -> bool:
    return False


class blaming(AbstractContextManager[None]):
    """Whatever goes wrong inside is an error of this plugin's method.

    That holds for what is no `Exception`, too: `sys.exit` in a plugin must not end the program in silence. A
    `PluginError` and the user's Ctrl-C pass through, and so does every error that `but` holds for.

    A class and no generator with `contextlib.contextmanager`: that takes an error whose cause is a StopIteration for
    the interpreter's own, and lets the StopIteration out.

    Args:
        kind: a key of `talon_core.plugins.registry.KINDS`.
        plugin: whose method is called.
        method: what it is called.
        but: which errors are not the plugin's.
    """

    __slots__ = ("_but", "_kind", "_method", "_plugin")

    def __init__(self, kind: str, plugin: object, method: str, but: Callable[[BaseException], bool] = _nobodys) -> None:
        self._kind, self._plugin, self._method, self._but = kind, plugin, method, but

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, PluginError | KeyboardInterrupt) or self._but(error):
            return
        raise PluginError(f"{naming(self._kind, self._plugin)} raised {described(error, self._method)}") from error


@contextmanager
def unblamed(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds that a plugin was blamed for inside are nobody's, and raised as they were."""
    try:
        yield
    except PluginError as error:
        cause = error.__cause__
        if isinstance(cause, kinds):
            raise cause from None
        raise


def described(error: BaseException, method: str) -> str:
    """An error as the end of a sentence about who raised it: its type, where, and what it says."""
    said = _said(error)
    return f"{type(error).__name__} in {method}" + (f": {said}" if said else "")


def blaming_bugs(kind: str, plugin: object, method: str) -> blaming:
    """As `blaming`, but an error about the user's input or the machine's limits passes through as it is."""
    return blaming(kind, plugin, method, but=_of_the_user)


def of_the_machine(error: BaseException) -> bool:
    """Whether an error says that memory has run out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, of a GPU
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)  # torch's, of a CPU


def _of_the_user(error: BaseException) -> bool:
    return of_the_machine(error) or isinstance(error, OSError | ValueError | BusyError)


def made_of(interface: type, given: object) -> str:
    """The end of a sentence about what is no object of a class, but should be: what would be right."""
    instead = f", as {given.__name__}() and not {given.__name__}" if isinstance(given, type) else ""
    return f"an object of class {interface.__name__}{instead}"


def check_made_of(interface: type, what: str, given: object) -> None:
    """Refuse what is no object of a class.

    Args:
        interface: the class.
        what: what it was given as, as the sentence begins.
        given: it.

    Raises:
        ValueError: if it is something else: callers expect one for everything that is given wrongly.
    """
    if not isinstance(given, interface):
        raise ValueError(f"{what} is {written(given)}; it must be {made_of(interface, given)}")  # noqa: TRY004
