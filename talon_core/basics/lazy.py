"""Packages whose names are imported when they are first used."""

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

NO_EXTRAS: Mapping[str, str] = {}


def import_on_use(package: str, names: Mapping[str, Iterable[str]], extras: Mapping[str, str] = NO_EXTRAS) -> None:
    """Let a package have names that are imported when they are first used.

    Args:
        package: its `__name__`.
        names: for each module the names that are in it. A module with a dot in front is one of the package.
        extras: for each library that some of these modules need, the extra of `talon-core` that brings it; where it is
            not installed, the `ModuleNotFoundError` says so.
    """
    where = {
        name: package + module if module.startswith(".") else module for module, own in names.items() for name in own
    }

    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in where:
                raise AttributeError(f"module '{package}' has no attribute '{name}'")
            try:
                value = getattr(import_module(where[name]), name)
            except ModuleNotFoundError as error:
                extra = extras.get(error.name or "")
                if extra is None:
                    raise
                said = f"{package}.{name} needs {error.name}, which is not installed: pip install 'talon-core[{extra}]'"
                raise ModuleNotFoundError(said, name=error.name) from error
            vars(self)[name] = value
            return value

        def __setattr__(self, name: str, value: Any) -> None:
            # An import puts each module into its package; a function that is called as its module is stays where it is.
            if not (name in where and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *where})

    sys.modules[package].__class__ = Lazy
