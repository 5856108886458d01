"""What a model must be for its passes to be TALON's: loaded, not quantised in a way that mixes tokens, not compiled."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from transformers import PreTrainedConfig

from talon_core.attention import AttentionBackend
from talon_core.hf.attention import ATTENTION_NAME
from talon_core.runtime.blocks import layers_in_blocks
from talon_core.runtime.embeddings import vocabulary_size
from talon_core.runtime.modules import is_wrapper

MIXING = "torch.ao.nn.quantized"
"""Modules of torch's eager-mode quantisation: the scale of a layer's input is that of all its tokens together."""


def checked_model(model: Any) -> Any:
    """The causal LM that was given, without the wrapper that `torch.compile(model)` puts around it.

    Raises:
        ValueError: if it is no transformers causal LM, has no weights, or is quantised in a way in which a token's
            logits depend on the others of the pass.
    """
    while is_wrapper(type(model)):
        model = model._orig_mod
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
        raise ValueError(
            f"the model is a {type(model).__name__}; it must be a transformers causal LM, as "
            "AutoModelForCausalLM.from_pretrained returns it"
        )
    if model.get_output_embeddings() is None:
        raise ValueError(f"{type(model).__name__} has no output layer; the model must be a transformers causal LM")
    for name, module in model.named_modules():
        if type(module).__module__.startswith(MIXING) or type(module).__module__.startswith("torch.nn.quantized"):
            raise ValueError(
                f"{type(model).__name__} is quantised by torch.ao ({name} is a {type(module).__module__}."
                f"{type(module).__name__}): what such a layer gives for one token depends on the others of the pass, "
                "so a tree of tokens cannot be verified; choose a model that is not quantised, or by weights alone"
            )
    for name, parameter in chain(model.named_parameters(), ((name, one.data) for name, one in layers_in_blocks(model))):
        if parameter.is_meta:
            elsewhere = {*map(str, (getattr(model, "hf_device_map", None) or {}).values())} & {"cpu", "disk"}
            if elsewhere:
                raise ValueError(
                    f"{type(model).__name__} is on several devices, and the weights of {name} are on the "
                    f"{elsewhere.pop()}, from where each pass would move them; load it with a device_map that keeps "
                    "all of it on GPUs, or all of it on the CPU"
                )
            raise ValueError(
                f"{type(model).__name__} has no weights: {name} is on the device 'meta'; "
                "load them with AutoModelForCausalLM.from_pretrained"
            )
    return model


def devices_of(model: Any) -> list[torch.device]:
    """Where the parameters of a transformers causal LM are: each device once, that of the first parameter first."""
    blocks = (one.data for _, one in layers_in_blocks(model))
    return list(dict.fromkeys(each.device for each in chain(model.parameters(), blocks)))


def why_not_together(model: Any, attention: AttentionBackend) -> str | None:
    """Why an attention backend cannot serve a model whose layers are on several devices, as a sentence; None if it can.

    Args:
        model: a transformers causal LM.
        attention: computes its attention; on one device it can.
    """
    devices = devices_of(model)
    if len(devices) < 2:
        return None
    where = f"{type(model).__name__} is on {len(devices)} devices ({', '.join(map(str, devices))})"
    for device in devices:
        why = attention.unavailable(device, model.dtype)
        if why is not None:
            return f"{where}, and attention backend '{attention.name}' cannot be used on {device}: {why}"
    return None


def check_layers(model: Any) -> None:
    """Make sure that each attention layer of a model that is switched to TALON's asks for it, with a cache of its own.

    transformers reaches layers through the configuration that they share with the model. One that was copied with its
    layer is another one: the layer would see a tree as a text.

    Args:
        model: a transformers causal LM, switched to TALON's attention.

    Raises:
        ValueError: if a layer has another attention, or two have the same keys and values; the sentence names them.
    """
    names: dict[tuple[type, int], str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        place, config = module.__dict__.get("layer_idx"), module.__dict__.get("config")
        if not isinstance(place, int) or not isinstance(config, PreTrainedConfig):
            continue
        if config._attn_implementation != ATTENTION_NAME:
            raise ValueError(
                f"{name} of {type(model).__name__} has a configuration of its own, so that TALON's attention does not "
                "reach it; set its config to that of the model's other layers"
            )
        other = names.setdefault((type(module), place), name)
        if other != name:
            raise ValueError(
                f"{other} and {name} of {type(model).__name__} both have layer_idx {place}, and so the same keys and "
                "values; give each layer its own"
            )


def check_windows(model: Any, windows: Sequence[int | None]) -> None:
    """A sliding window must reach the attention of as many layers as the model's configuration says.

    Args:
        model: a transformers causal LM.
        windows: that of each layer that called TALON's attention in a pass.

    Raises:
        ValueError: if it does not, or not every layer called it.
    """
    config = model.config.get_text_config()
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds:
        expected = kinds.count("sliding_attention") if window else 0
    else:
        expected = len(windows) if window and getattr(config, "use_sliding_window", True) else 0
    found = sum(given is not None for given in windows)
    if found != expected or len(windows) != config.num_hidden_layers:
        raise ValueError(
            f"{type(model).__name__} called TALON's attention in {len(windows)} of {config.num_hidden_layers} layers, "
            f"with a sliding window in {found} where its configuration has {expected}; choose another target"
        )


class AsLoaded:
    """What a model was when a decoder was made for it, as far as that depends on it.

    Args:
        model: a transformers causal LM.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._was = self._now()

    def _now(self) -> dict[str, Any]:
        model = self._model
        return {"dtype": model.dtype, "device": model.device, "vocabulary size": vocabulary_size(model)}

    def difference(self) -> str | None:
        """What it is that is not as it was, as a sentence; None if everything is."""
        for what, now in self._now().items():
            if now != self._was[what]:
                return (
                    f"{type(self._model).__name__} was changed after its decoder was made: its {what} was "
                    f"{self._was[what]} and is {now}; call talon_core.load again"
                )
        return None


def check_autocast(device: torch.device) -> None:
    """Make sure that autocast is off for a device.

    Raises:
        ValueError: if it is on.
    """
    if torch.is_autocast_enabled(device.type):
        raise ValueError(
            f"torch.autocast is on for {device.type}, and would round a tree's logits in other places than those of "
            "plain decoding; load and decode outside of it, with the model in the dtype that is wanted"
        )
