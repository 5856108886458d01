"""The packages that peers need, as installed."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any


def missing(module: str, extra: str) -> str | None:
    """The end of a sentence about a package that is not installed, with what brings it; None if it is there.

    Args:
        module: what is imported.
        extra: of TALON, which has the package.
    """
    if find_spec(module) is not None:
        return None
    return f"the package '{module}' is not installed; pip install 'talon-core[{extra}]' brings it"


def imported(module: str) -> Any:
    """A package of an extra. It need not be installed where types are checked."""
    return import_module(module)


def version_of(distribution: str) -> str:
    """A distribution's name and version."""
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution} of an unknown version"
