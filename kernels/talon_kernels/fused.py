"""Makes a transformers model's own layers faster on a GPU, by fewer launches, for as long as one asks for it.

Between its products a decoder layer does some forty small operations, each of which is a launch that takes longer than
its work. Norms, the sum before the second of them, gates of MLPs, and rotary embedding with the write of keys and
values are one launch each here. As on a CPU, a layer is replaced only after its replacement reproduced its output on
random input, on the device, and no model is known by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from talon_kernels.acceleration import PROBE_ERROR, PROBE_SCALES, Acceleration, replaced, same
from talon_kernels.fused_attention import attention_forward, query_weight, rotary_widths
from talon_kernels.gated_unit import gated_unit
from talon_kernels.gated_unit.native import KINDS
from talon_kernels.replacements import MLP_CHILDREN, Forward, activates, eps_name, learns, listened_to
from talon_kernels.rms_norm import add_rms_norm, rms_norm
from talon_kernels.triton_runtime import MOST_WIDE, TYPES

LAYER_CHILDREN = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
"""Parts of a decoder layer that adds what attention gives to its input, and what the MLP gives to that."""

ROUNDING = 4.0
"""Rounding steps of its type that a replacement may be off by: two for each of two roundings that a layer does more."""


@torch.no_grad()
def fuse(model: nn.Module) -> Acceleration:
    """Prepare fused forwards for a model's RMS norms, gated MLPs, attention and decoder layers. Nothing is changed yet.

    Args:
        model: on a GPU, or on the CPU where Triton interprets; in float32, bfloat16 or float16. Attention is left alone
            where `talon_core.hf` was not imported, by which transformers knows TALON's.

    Returns:
        A context; see `Acceleration`.
    """
    found: list[tuple[str, nn.Module, Forward]] = []
    left: Counter[str] = Counter()
    generator = torch.Generator().manual_seed(0)  # preparing must not move the random numbers of the user
    widths = rotary_widths(model)
    for module in model.modules():
        for kind, forward in _tried(module, widths, generator) if "forward" not in module.__dict__ else ():
            if forward is None:
                left[kind] += 1
            else:
                found.append((kind, module, forward))
    return Acceleration(found, left, None)


def _tried(
    module: nn.Module, widths: Sequence[int], generator: torch.Generator
) -> Iterator[tuple[str, Forward | None]]:
    """The kinds that a module may be of, and of each the forward that reproduced its output, or None."""
    for kind, candidates in (("rms norm", _norms), ("gated mlp", _gates), ("decoder layer", _layers)):
        weight, forwards, meanwhile = candidates(module)
        if weight is not None:
            probe, error = _probe(weight, generator)
            with meanwhile:
                chosen = next((forward for forward in forwards if same(module, forward, probe, error)), None)
            yield kind, chosen
    weight = query_weight(module)
    if widths and weight is not None:
        yield "attention", attention_forward(module, *_probe(weight, generator), widths, generator)


def _probe(weight: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """Rows of the width that a weight reads, on its device and of its type, and the error that is allowed there."""
    probe = torch.randn((1, len(PROBE_SCALES), weight.shape[-1]), generator=generator)
    probe = (probe * torch.tensor(PROBE_SCALES)[:, None]).to(weight.device, weight.dtype)
    return probe, max(PROBE_ERROR, ROUNDING * torch.finfo(weight.dtype).eps)


_Candidates = tuple[Tensor | None, list[Forward], AbstractContextManager[None]]
"""A weight as wide as the module's input, the forwards that the module may have, and what to do while they are tried;
no weight if it is none of its kind."""

_NONE: _Candidates = (None, [], nullcontext())


def _norms(module: nn.Module) -> _Candidates:
    weight, name = module._parameters.get("weight"), eps_name(module)
    if weight is None or name is None or not _plain(weight):
        return _NONE
    return weight, [_norm_forward(module, name, offset) for offset in (0.0, 1.0)], nullcontext()


def _norm_forward(module: nn.Module, name: str, offset: float) -> Forward:
    own, parameters = type(module).forward, module._parameters

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        weight = parameters.get("weight")
        if args or kwargs or not _fits(x, weight):
            return own(module, x, *args, **kwargs)
        assert weight is not None
        return rms_norm(x, weight, getattr(module, name), offset, backend="triton")

    return forward


def _gates(module: nn.Module) -> _Candidates:
    children = module._modules
    gate = children.get(MLP_CHILDREN[0])
    weight = gate._parameters.get("weight") if type(gate) is nn.Linear else None
    if (
        weight is None
        or not set(MLP_CHILDREN) <= children.keys()
        or not hasattr(module, "act_fn")
        or not _plain(weight)
    ):
        return _NONE
    return weight, [_gate_forward(module, kind) for kind in KINDS if activates(module, kind)], nullcontext()


def _gate_forward(module: nn.Module, kind: str) -> Forward:
    own, children = type(module).forward, module._modules
    holder: Mapping[str, Any] = children if "act_fn" in children else module.__dict__
    activation = holder.get("act_fn")

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        gate, up, down = (children.get(name) for name in MLP_CHILDREN)
        if args or kwargs or gate is None or up is None or down is None or holder.get("act_fn") is not activation:
            return own(module, x, *args, **kwargs)
        if listened_to(children.get("act_fn")) or learns(module, x):
            return own(module, x)
        return down(gated_unit(gate(x), up(x), kind, backend="triton"))

    return forward


def _layers(module: nn.Module) -> _Candidates:
    children = module._modules
    if set(children) != {*LAYER_CHILDREN} or module._parameters or module._buffers:
        return _NONE
    norm = children["post_attention_layernorm"]
    weight, name = (norm._parameters.get("weight"), eps_name(norm)) if norm is not None else (None, None)
    if weight is None or name is None or not _plain(weight):
        return _NONE
    # what goes into attention and the MLP, and what comes out of them, is what the layer itself decides
    stand_ins: dict[nn.Module, Forward] = {}
    for part, out in (("self_attn", lambda x: (0.5 * x, None)), ("mlp", lambda x: 0.25 * x)):
        child = children[part]
        assert child is not None
        stand_ins[child] = _stand_in(out)
    return weight, [_layer_forward(module, name, offset) for offset in (0.0, 1.0)], replaced(stand_ins)


def _stand_in(out: Callable[[Tensor], Any]) -> Forward:
    def forward(hidden_states: Tensor, **_: Any) -> Any:
        return out(hidden_states)

    return forward


def _layer_forward(module: nn.Module, name: str, offset: float) -> Forward:
    own, children = type(module).forward, module._modules

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        attention, mlp, first, second = (children.get(part) for part in LAYER_CHILDREN)
        weight = second._parameters.get("weight") if second is not None else None
        if args or attention is None or mlp is None or first is None or not _fits(hidden_states, weight):
            return own(module, hidden_states, *args, **kwargs)
        if listened_to(second) or learns(module, hidden_states):
            return own(module, hidden_states, **kwargs)
        assert weight is not None
        attended = attention(hidden_states=first(hidden_states), **kwargs)[0]
        total, normed = add_rms_norm(attended, hidden_states, weight, getattr(second, name), offset, backend="triton")
        return total + mlp(normed)

    return forward


def _plain(weight: Tensor) -> bool:
    """Whether a parameter's memory holds its numbers, of a type and of a width that the kernels take."""
    dense = type(weight) is nn.Parameter and weight.layout is torch.strided and not weight.is_neg()
    return dense and weight.dtype in TYPES and weight.shape[-1] <= MOST_WIDE


def _fits(x: Any, weight: Tensor | None) -> bool:
    """Whether rows go with a weight, and nobody wants a gradient of them."""
    if type(x) is not Tensor or weight is None or not _plain(weight):
        return False
    learns = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (x.dtype, x.device, x.shape[-1:]) == (weight.dtype, weight.device, weight.shape) and not learns
