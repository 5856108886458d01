"""Errors that name a plugin."""

from collections.abc import Iterator
from contextlib import contextmanager


class PluginError(RuntimeError):
    """A plugin broke its contract. The message names the plugin, what it did and what would be right."""


def naming(kind: str, plugin: object) -> str:
    """How an error calls a plugin's object: its kind, registered name and class."""
    cls = type(plugin)
    name = getattr(plugin, "name", cls.__name__)
    return f"{kind} '{name}' ({cls.__module__}.{cls.__qualname__})"


@contextmanager
def blaming(kind: str, plugin: object, method: str) -> Iterator[None]:
    """Whatever goes wrong inside is an error of this plugin's method; a `PluginError` passes through."""
    try:
        yield
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"{naming(kind, plugin)} raised {type(error).__name__} in {method}: {error}") from error


@contextmanager
def blaming_bugs(kind: str, plugin: object, method: str) -> Iterator[None]:
    """As `blaming`, but an error about the user's input or the machine's limits passes through as it is."""
    try:
        yield
    except Exception as error:
        limits = isinstance(error, OSError | MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
        if limits or isinstance(error, PluginError | ValueError):
            raise
        raise PluginError(f"{naming(kind, plugin)} raised {type(error).__name__} in {method}: {error}") from error
