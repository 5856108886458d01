"""Libraries that only an extra brings."""

from importlib import import_module
from typing import Any

from talon_core.errors import one_line


def library(name: str, extra: str, what: str) -> Any:
    """Import one of them.

    Args:
        name: the module's.
        extra: of `talon-core`, which brings it.
        what: what needs it, as the user asked for it.

    Raises:
        ValueError: if it cannot be imported; the sentence names the extra.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(
            f"{what} needs {name}, which cannot be imported ({one_line(error)}); install it with: "
            f"pip install 'talon-core[{extra}]'"
        ) from error
