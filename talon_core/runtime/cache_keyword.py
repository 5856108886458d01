"""How a network of transformers is handed its cache, which is not called the same in all versions."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

CACHE_KEYWORDS = ("past_key_values", "cache")
"""Up to transformers 5.23, and from 5.24 on; models that bring their own code may have either with any version."""


def cache_keyword(network: nn.Module) -> str:
    """The keyword by which a network's forward takes its cache, and by which its output has it.

    Args:
        network: a causal LM, or a part of one. Of one that is wrapped, and whose forward hands on whatever it is
            given, the outermost module counts whose forward names it, or that of a class that it is derived from.
    """
    for module in network.modules():
        own = (vars(each).get("forward") for each in type(module).__mro__)
        for forward in (module.forward, *filter(None, own)):
            name = _named(forward)
            if name is not None:
                return name
    return CACHE_KEYWORDS[0]


def _named(forward: Callable[..., Any]) -> str | None:
    try:
        parameters = inspect.signature(forward).parameters
    except (TypeError, ValueError):  # of what is not written in Python
        return None
    return next((name for name in CACHE_KEYWORDS if name in parameters), None)
