"""In how many bits a model keeps its weights."""

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from torch import nn

from talon_core.errors import is_whole
from talon_core.runtime.blocks import Held, named_weights
from talon_core.runtime.weights import shape_of

BITS = ("bits", "w_bit")
"""What configurations of quantisation call the number: GPTQ's and AWQ's, and older ones of AWQ."""

NAMED = {"int8": 8, "float8": 8, "int4": 4, "int2": 2}
"""What they call weights by name, as Quanto's does."""

TORCHAO = re.compile(r"(?:int|float)(\d)weight", re.IGNORECASE)
"""How classes of torchao's configurations are called, as `Int8DynamicActivationInt4WeightConfig`."""


def weight_bits(model: Any) -> int | None:
    """The bits of a weight of a model; None where a quantised model does not say.

    Where layers have their weights in a GGUF file's blocks, it is the mean of all weights, with what blocks hold
    besides them, rounded: weights that do not stay in blocks, such as those of experts, count with their float32.

    Args:
        model: a transformers causal LM.
    """
    stored = _bits_of_blocks(model)
    if stored is not None:
        return stored
    given = getattr(model.config, "quantization_config", None)
    if given is None:
        return 8 * int(model.dtype.itemsize)
    told: Mapping[str, Any] = given if isinstance(given, Mapping) else vars(given)
    for name, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):  # bitsandbytes'; objects have them as _load_in_4bit
        if told.get(name) or told.get(f"_{name}"):
            return bits
    counts = (told.get(name) for name in BITS)
    found = next((int(bits) for bits in counts if is_whole(bits)), None)
    return found if found is not None else NAMED.get(str(told.get("weights"))) or _bits_of_torchao(told)


def _bits_of_torchao(told: Mapping[str, Any]) -> int | None:
    """What its configuration, an object or read from a file, says by its name; None where it says nothing so."""
    kind = told.get("quant_type")
    if isinstance(kind, Mapping):
        kind = kind.get("default", kind)
    name = kind.get("_type") if isinstance(kind, Mapping) else kind if isinstance(kind, str) else type(kind).__name__
    said = TORCHAO.search(str(name).replace("_", ""))
    return None if said is None else int(said[1])


def _bits_of_blocks(model: Any) -> int | None:
    """The mean of a model's weights, each counted once; None where none is in blocks."""
    held = Held.by(model) if isinstance(model, nn.Module) else None
    if held is None or not held.in_blocks:
        return None
    return round(8 * held.whole / sum(prod(shape_of(weight)) for _, weight in named_weights(model)))
