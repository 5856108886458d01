"""Since when files have to be as they are, so that modules which are loaded are what their files hold."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from weakref import WeakKeyDictionary

STARTED = time.time_ns()
"""When TALON was imported, in nanoseconds since 1970: no module with one of its classes can have been read before."""

_BEFORE: WeakKeyDictionary[ModuleType, int] = WeakKeyDictionary()  # what is loaded belongs to the whole process


@contextmanager
def noting_imports() -> Iterator[None]:
    """Remember of every module that is imported inside that it was not loaded before."""
    known, now = {*sys.modules}, time.time_ns()
    try:
        yield
    finally:
        for name in sys.modules.keys() - known:
            module = sys.modules.get(name)
            if isinstance(module, ModuleType):
                _BEFORE[module] = now


def unread_until(package: str) -> int:
    """A time before a loaded package was read: nanoseconds since 1970. Files that changed later may not be its code."""
    module = sys.modules.get(package)
    return _BEFORE.get(module, STARTED) if module is not None else STARTED
