"""Code in files: the hash of a package, whether it is the code that is loaded, and whether a class is what it says."""

import ast
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import attrs

from talon_core.basics.loaded import unread_until

CODE = frozenset({".py", ".pyc", ".pyd", ".so"})
"""Files of a package that count as its code."""

SETTLED = 2_000_000_000
"""After so many nanoseconds a file that changes again has another time, on every file system."""

TRANSPARENT = frozenset({"property", "staticmethod", "classmethod", "abstractmethod", "override"})
"""Decorators under which a method is still the function that stands there."""


class UntoldError(ValueError):
    """The code of a part cannot be told, so no certificate can belong to it. The message is a sentence."""


@attrs.frozen
class _File:
    """A file of a package: its name in the hash, where it is, and what tells that it has changed."""

    name: str
    path: Path
    size: int
    modified: int
    changed: int


def source_file(cls: type) -> Path | None:
    """The file of the module that holds a class under its own name; None for a class of a notebook or a function."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if cls.__module__ == "__main__" or not isinstance(file, str) or not is_held(cls) or not Path(file).is_file():
        return None
    return Path(file).resolve()


def loaded_from(package: str) -> Path | None:
    """Where a package or module that is loaded is: its folder, or its file; None if it is not loaded from a file."""
    file = getattr(sys.modules.get(package), "__file__", None)
    if not isinstance(file, str):
        return None
    return Path(file).resolve().parent if Path(file).stem == "__init__" else Path(file).resolve()


def package_of(cls: type) -> tuple[str, Path] | None:
    """The outermost package that a class is in, and where; None for a class of a notebook or a function."""
    if source_file(cls) is None:
        return None
    names = cls.__module__.split(".")
    for length in range(1, len(names)):  # the outermost ones may be no folders of their own
        name = ".".join(names[:length])
        where = loaded_from(name)
        if where is not None and where.is_dir():
            return name, where
    where = loaded_from(cls.__module__)
    assert where is not None
    return cls.__module__, where


def is_held(cls: type) -> bool:
    """Whether the module of a class holds it under its own name."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


# The hash


def running_digest(package: str, where: Path) -> str:
    """As `digest`, of a package that is loaded, if its files are what was loaded.

    Raises:
        UntoldError: if a file has changed since, is gone, or cannot be read.
    """
    before = unread_until(package)
    files = _files(where)
    newer = next((file for file in files if file.changed > before), None)
    if newer is not None:
        raise UntoldError(
            f"'{newer.path}' has changed while Python ran, so the code of '{package}' that is loaded may be another "
            "one; start Python anew"
        )
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if f"{name}.".startswith(f"{package}.") and isinstance(file, str) and not Path(file).exists():
            raise UntoldError(f"the code of '{package}' is loaded from '{file}', which is gone; start Python anew")
    return _digest(files)


def digest(where: Path) -> str:
    """The SHA-256 of a package's code, or of a single module's: every file's path, size and content, in order.

    Raises:
        UntoldError: if a file cannot be read.
    """
    return _digest(_files(where))


def _digest(files: tuple[_File, ...]) -> str:
    newest = max((max(file.modified, file.changed) for file in files), default=0)
    # a file that has only just been written may be written again at what its file system calls the same time
    hashed = _hashed if newest + SETTLED < time.time_ns() else _hashed.__wrapped__
    return hashed(files)


@lru_cache(maxsize=256)
def _hashed(files: tuple[_File, ...]) -> str:
    code = hashlib.sha256()
    for file in files:
        try:
            content = file.path.read_bytes()
        except OSError as error:
            raise UntoldError(f"the code in '{file.path}' cannot be read: {error.strerror or error}") from error
        code.update(f"{file.name}\0{len(content)}\0".encode())
        code.update(content)
    return code.hexdigest()


def _files(where: Path) -> tuple[_File, ...]:
    found = []
    try:
        paths = [where] if where.is_file() else sorted(_code_files(where), key=lambda path: path.as_posix())
        for path in paths:
            now = path.stat()
            # where there is such a time, it cannot be set, and copies do not keep it; Windows has none
            changed = now.st_ctime_ns if os.name == "posix" else now.st_mtime_ns
            name = path.relative_to(where.parent).as_posix()
            found.append(_File(name, path, now.st_size, now.st_mtime_ns, changed))
    except OSError as error:
        raise UntoldError(
            f"the code in '{error.filename or where}' cannot be read: {error.strerror or error}"
        ) from error
    return tuple(found)


def _code_files(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """The files of code in a folder, also behind links; a link back to a folder that it is in is not followed."""
    here = folder.stat().st_dev, folder.stat().st_ino
    if here in above:
        return
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _code_files(path, (*above, here))
        elif path.suffix in CODE and path.is_file():
            yield path


# Classes that were changed while they run


def patched(part: object) -> str | None:
    """The method of an object that is not the one in its class's file, or in that of a base; None if all of them are.

    A method with a decorator that may put another function in its place is not looked at, nor is one that is assigned.
    """
    cls, resolved = type(part), cache(_resolved)  # most methods are of few files
    for name in vars(part) if hasattr(part, "__dict__") else ():
        if isinstance(getattr(cls, name, None), FunctionType):
            return f"{cls.__qualname__}.{name}"
    for base in cls.__mro__:
        file = source_file(base)
        if file is None or file.suffix != ".py" or base.__module__.partition(".")[0] in sys.stdlib_module_names:
            continue
        now = file.stat()
        written = _written(file, now.st_size, now.st_mtime_ns).get(base.__qualname__)
        if written is None:  # a class that a function has made
            continue
        for name, found in vars(base).items():
            private = f"_{base.__name__.lstrip('_')}__"
            name = name.replace(private, "__", 1) if name.startswith(private) else name
            if not _is_of_file(found, written.get(name), f"{base.__qualname__}.{name}", file, resolved):
                return f"{base.__qualname__}.{name}"
    return None


def _resolved(file: str) -> Path:
    return Path(file).resolve()


def _is_of_file(found: object, plain: bool | None, qualname: str, file: Path, resolved: Callable[[str], Path]) -> bool:
    """Whether what a class holds under a name is what the file says: `plain`, see `_written`; None if nothing is."""
    if plain is False:
        return True
    for function in _functions(found):
        if not isinstance(function, FunctionType):
            return plain is None  # compiled, or an object of a library
        code = function.__code__
        if code.co_qualname == qualname and resolved(code.co_filename) == file:
            continue
        if plain or not _is_generated(code.co_filename, resolved):
            return False
    return True


def _functions(found: object) -> Iterator[object]:
    if isinstance(found, property):
        yield from (each for each in (found.fget, found.fset, found.fdel) if each is not None)
    elif isinstance(found, staticmethod | classmethod):
        yield found.__func__
    elif callable(found):
        yield found


def _is_generated(file: str, resolved: Callable[[str], Path]) -> bool:
    """Whether code was made by attrs or is of Python's own library, which add methods to classes."""
    if file.startswith("<attrs generated"):
        return True
    library, packages, where = resolved(os.__file__).parent, resolved(attrs.__file__).parents[1], resolved(file)
    if where.is_relative_to(packages / "attr"):
        return True
    return where.is_relative_to(library) and not where.is_relative_to(packages)


@lru_cache(maxsize=256)
def _written(file: Path, size: int, modified: int) -> dict[str, dict[str, bool]]:
    """For each class of a file the names that its body sets, and whether each is a function as it stands there."""
    found: dict[str, dict[str, bool]] = {}
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return found
    _look_into(tree, "", found)
    return found


def _look_into(node: ast.AST, within: str, found: dict[str, dict[str, bool]]) -> None:
    names = found.get(within[:-1], {})
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            names[child.name] = False
            found[f"{within}{child.name}"] = {}
            _look_into(child, f"{within}{child.name}.", found)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            plain = all(_last_name(each) in TRANSPARENT for each in child.decorator_list)
            names[child.name] = plain and names.get(child.name, True)
        else:
            for target in ast.walk(child) if not isinstance(child, ast.If | ast.Try | ast.With) else ():
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    names[target.id] = False
            _look_into(child, within, found)


def _last_name(decorator: ast.expr) -> str:
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
