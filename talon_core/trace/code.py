"""What was worked out with a part of a method does not count when the part is another one."""

from talon_core.certificates.code import UntoldError, digest, package_of
from talon_core.plugins.specs import spelled


def code_of(part: object) -> str:
    """Tells a part and its options from what they are after a change: by their names, and the code of its package."""
    package = package_of(type(part))
    try:
        own = "" if package is None else digest(package[1])
    except UntoldError:
        own = ""
    return f"{type(part).__module__}.{type(part).__qualname__} {own} {spelled(part)}"
