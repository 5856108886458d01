"""What a class has changed of what its bases do."""

from collections.abc import Collection


def overrides(cls: type, methods: Collection[str], than: str) -> bool:
    """Whether a class, or one between, defines any of some methods below the class that defines another one.

    Args:
        cls: the class.
        methods: they; one that no class defines is not defined below either.
        than: the other one.
    """
    for one in cls.__mro__:
        if than in vars(one):
            return False
        if any(method in vars(one) for method in methods):
            return True
    return False
