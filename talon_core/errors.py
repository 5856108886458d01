"""Errors that name a plugin."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PluginError(RuntimeError):
    """A plugin broke its contract. The message names the plugin, what it did and what would be right."""


def naming(kind: str, plugin: object) -> str:
    """How an error calls a plugin's object, or its class: its kind, registered name and class."""
    cls = plugin if isinstance(plugin, type) else type(plugin)
    name = getattr(plugin, "name", cls.__name__)
    return f"{kind} '{name}' ({cls.__module__}.{cls.__qualname__})"


@contextmanager
def blaming(
    kind: str, plugin: object, method: str, but: Callable[[Exception], bool] = lambda error: False
) -> Iterator[None]:
    """Whatever goes wrong inside is an error of this plugin's method.

    A `PluginError` passes through, and so does every error that `but` holds for.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, PluginError) or but(error):
            raise
        raise PluginError(f"{naming(kind, plugin)} raised {type(error).__name__} in {method}: {error}") from error


@contextmanager
def blaming_bugs(kind: str, plugin: object, method: str) -> Iterator[None]:
    """As `blaming`, but an error about the user's input or the machine's limits passes through as it is."""
    with blaming(kind, plugin, method, but=_of_the_user):
        yield


def _of_the_user(error: Exception) -> bool:
    limits = isinstance(error, OSError | MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
    return limits or isinstance(error, ValueError)
