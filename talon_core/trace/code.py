"""What was worked out with a part of a method does not count when the part is another one."""

from talon_core.certificates.code import UntoldError, digest, package_of
from talon_core.plugins.specs import spelled


def code_of(part: object) -> str:
    """Tells a part and its options from what they are after a change: by their names, and the code of its package."""
    cls = type(part)
    return f"{cls.__module__}.{cls.__qualname__} {package_code(cls)} {spelled(part)}"


def package_code(cls: type) -> str:
    """A hash of the code of the package that a class is in; empty where that cannot be told."""
    package = package_of(cls)
    try:
        return "" if package is None else digest(package[1])
    except UntoldError:
        return ""
