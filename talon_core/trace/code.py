"""What was worked out with a part of a method does not count when the part is another one."""

from collections.abc import Iterator
from typing import Any

import attrs

from talon_core.certificates.code import UntoldError, digest, package_of
from talon_core.drafter import DrafterSpec
from talon_core.plugins.specs import spelled
from talon_core.policy import TreePolicy


def code_of(part: object) -> str:
    """Tells a part and its options from what they are after a change: by their names, and the code of its package.

    Of a part that is made of others, as a `hybrid` of drafters, theirs count as well.
    """
    told = [f"{type(one).__module__}.{type(one).__qualname__} {package_code(type(one))}" for one in _with_parts(part)]
    return f"{' '.join(told)} {spelled(part)}"


def code_is_known(part: object) -> bool:
    """Whether the code of a part and of those that it is made of can be told."""
    return all(package_code(type(one)) for one in _with_parts(part))


def package_code(cls: type) -> str:
    """A hash of the code of the package that a class is in; empty where that cannot be told."""
    package = package_of(cls)
    try:
        return "" if package is None else digest(package[1])
    except UntoldError:
        return ""


def _with_parts(part: object) -> Iterator[object]:
    yield part
    cls: Any = type(part)
    for field in attrs.fields(cls) if attrs.has(cls) else ():
        value = getattr(part, field.name, None)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, DrafterSpec | TreePolicy):
                yield from _with_parts(one)
