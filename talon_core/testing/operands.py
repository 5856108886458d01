"""What operations are given and give: in tuples, lists and dictionaries, and in those inside of them.

torch's own trees look each operand up in a table of types, which takes longer than most operations on small tensors.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["leaves", "mapped"]


def leaves(of: Any) -> list[Any]:
    """All that is no tuple, list or dictionary, in its order."""
    if isinstance(of, dict):
        of = of.values()
    elif not isinstance(of, (tuple, list)):
        return [of]
    return [leaf for one in of for leaf in leaves(one)]


def mapped(function: Callable[[Any], Any], of: Any) -> Any:
    """The same with what a function makes of each leaf."""
    if isinstance(of, dict):
        return {name: mapped(function, one) for name, one in of.items()}
    return type(of)([mapped(function, one) for one in of]) if isinstance(of, (tuple, list)) else function(of)
