"""How a network of transformers is handed its cache, which is not called the same in all versions."""

import inspect

from torch import nn

CACHE_KEYWORDS = ("past_key_values", "cache")
"""Up to transformers 5.23, and from 5.24 on; models that bring their own code may have either with any version."""


def cache_keyword(network: nn.Module) -> str:
    """The keyword by which a network's forward takes its cache, and by which its output has it.

    Args:
        network: a causal LM, or a part of one. Of one that is wrapped, and whose forward hands on whatever it is
            given, the outermost module counts whose forward names it.
    """
    for module in network.modules():
        try:
            parameters = inspect.signature(module.forward).parameters
        except (TypeError, ValueError):  # of what is not written in Python
            continue
        for name in CACHE_KEYWORDS:
            if name in parameters:
                return name
    return CACHE_KEYWORDS[0]
