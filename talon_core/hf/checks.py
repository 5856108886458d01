"""What a model must be for its passes to be TALON's: loaded, not quantised in a way that mixes tokens, not compiled."""

from itertools import chain
from typing import Any

import torch

from talon_core.attention import AttentionBackend, DeviceBackend
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
    if isinstance(attention, DeviceBackend):
        one = f"attention backend '{attention.name}' keeps what a pass reads on one"
        return f"{where}, and {one}; take 'sdpa', or load the model on one device"
    for device in devices:
        why = attention.unavailable(device, model.dtype)
        if why is not None:
            return f"{where}, and attention backend '{attention.name}' cannot be used on {device}: {why}"
    return None


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
