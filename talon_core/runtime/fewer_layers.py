"""A causal LM without some of its layers, which shares all modules with the whole one."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from talon_core.runtime.states import decoder_layers


def without_layers(model: Any, skip: Sequence[int]) -> Any:
    """A causal LM that shares all modules with `model` but lacks some of its decoder layers.

    What it does not share, the modules above its layers, is in evaluation mode.

    Args:
        model: a transformers causal LM; it is not changed.
        skip: the layers to leave out, counted from 0.

    Raises:
        ValueError: if a layer does not exist, or none would be left.
    """
    layers = decoder_layers(model)
    wrong = [layer for layer in skip if not 0 <= layer < len(layers)]
    if wrong:
        raise ValueError(f"skip names layer {wrong[0]}; the target has layers 0 to {len(layers) - 1}")
    kept = [layer for layer in range(len(layers)) if layer not in set(skip)]
    if not kept:
        raise ValueError(f"skip leaves out all {len(layers)} layers; at least one must stay")
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = len(kept)
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[layer] for layer in kept]
    path = next(name for name, module in model.named_modules() if module is layers).split(".")
    top = part = _shallow(model)
    part.config = config
    for name in path[:-1]:
        child = _shallow(getattr(part, name))
        if isinstance(getattr(child, "config", None), type(text)):
            child.config = text
        setattr(part, name, child)
        part = child
    fewer = nn.ModuleList([layers[layer] for layer in kept])
    fewer.training = False
    setattr(part, path[-1], fewer)
    return top


def _shallow(module: Any) -> Any:
    """A module of the same class that shares everything but the dictionaries that hold its children."""
    twin = copy.copy(module)
    twin.training = False
    twin._modules = dict(module._modules)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    return twin
