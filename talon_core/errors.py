"""Errors that name a plugin."""


class PluginError(RuntimeError):
    """A plugin broke its contract. The message names the plugin, what it did and what would be right."""


def naming(kind: str, plugin: object) -> str:
    """How an error calls a plugin's object: its kind, registered name and class."""
    cls = type(plugin)
    name = getattr(plugin, "name", cls.__name__)
    return f"{kind} '{name}' ({cls.__module__}.{cls.__qualname__})"
