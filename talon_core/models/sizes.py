"""Whether a model's configuration asks for more than a machine can hold, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from talon_core.basics.memory import host_memory

MOST_LAYERS = 10_000
"""Far more than any model has; so many take a while to make even where they are tiny."""

BYTES_OF_A_WEIGHT = 0.25
"""Less than any format of weights needs."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model")
INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")


def check_sizes(config: Mapping[str, Any], memory: int | None = None) -> None:
    """Refuse a model that no machine such as this one can hold.

    Args:
        config: what the model's config.json says.
        memory: bytes of it; this machine's by default.

    Raises:
        ValueError: if it is too large; the sentence names the numbers.
    """
    for part in (config, *(each for each in config.values() if isinstance(each, Mapping))):
        _check_part(part, machine_memory() if memory is None else memory)


def _check_part(config: Mapping[str, Any], memory: int | None) -> None:
    found = {name: config[name] for name in (*LAYERS, *WIDTHS, *INNER, "vocab_size") if _is_size(config.get(name))}
    layers, width, inner = (
        next((found[name] for name in names if name in found), 0) for names in (LAYERS, WIDTHS, INNER)
    )
    told = ", ".join(f"{name} {size}" for name, size in found.items())
    if layers > MOST_LAYERS:
        raise ValueError(f"its configuration says {told}; a model has at most {MOST_LAYERS} layers.")
    # each layer has at least one square matrix, and one of its inner size
    weights = layers * width * (width + inner) + found.get("vocab_size", 0) * width
    if memory is not None and weights * BYTES_OF_A_WEIGHT > memory:
        raise ValueError(
            f"its configuration says {told}: that is more than {weights:.2g} weights, and this machine has "
            f"{memory / 1e9:.0f} GB of memory."
        )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def machine_memory() -> int | None:
    """Bytes of memory of this machine and its GPUs; None if it does not tell."""
    import torch

    own = host_memory()
    if own is None:
        return None
    return own + sum(torch.cuda.get_device_properties(each).total_memory for each in range(torch.cuda.device_count()))
