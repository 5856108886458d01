"""What may stand in for the layers of a transformers model on a CPU; whether it may is found out by trying."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from talon_core.runtime.blocks import BlockEmbedding, BlockLinear, Blocks
from talon_kernels.gated_mlp.native import gated_mlp_native
from talon_kernels.gated_unit.native import KINDS
from talon_kernels.gated_unit.reference import gated_unit_reference
from talon_kernels.narrow import Narrow
from talon_kernels.native import Library
from talon_kernels.rms_norm.native import rms_norm_native
from talon_kernels.skinny_linear.native import skinny_linear_native
from talon_kernels.stored import Stored, shape_of
from talon_kernels.widening.native import widen_native

Forward = Callable[..., Any]

EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
MLP_CHILDREN = ("gate_proj", "up_proj", "down_proj")

_float32 = torch.float32

Candidates = tuple[int, list[Forward]] | None
"""The width of a module's input, and the forwards it may have."""


def plain(module: nn.Module) -> bool:
    """Whether a module is what its class makes of it: not compiled, and with dense float32 parameters on the CPU."""
    if (
        isinstance(module, torch.jit.ScriptModule)
        or "forward" in module.__dict__
        or module._compiled_call_impl is not None
    ):
        return False
    return all(_plain_parameter(parameter) for parameter in module.parameters(recurse=False))


def _plain_parameter(parameter: Tensor) -> bool:
    """Whether its memory holds its numbers; a subclass of tensors may keep anything there."""
    if type(parameter) is not nn.Parameter or not parameter.is_cpu:
        return False
    return parameter.layout is torch.strided and parameter.dtype is _float32 and not parameter.is_neg()


def _plain_linear(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer with a weight of its own: not a subclass, quantised, pruned or compiled."""
    return type(module) is nn.Linear and module._parameters.get("weight") is not None and plain(module)


def _usable(x: Any, weight: Any) -> bool:
    return (
        type(x) is Tensor
        and type(weight) is nn.Parameter
        and x.dtype is _float32
        and weight.dtype is _float32
        and x.is_cpu
        and weight.is_cpu
        and weight.is_contiguous()
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
    )


def _narrow_copy(library: Library, weight: Tensor, narrow: dict[Tensor, Narrow]) -> Narrow | None:
    """One for each weight, tied ones included; None for a weight whose changes PyTorch does not count."""
    if weight.is_inference():
        return None
    if weight not in narrow:
        narrow[weight] = Narrow(library, weight)
    return narrow[weight]


def linear_candidates(library: Library, module: nn.Module, narrow: dict[Tensor, Narrow]) -> Candidates:
    if not _plain_linear(module):
        return None
    copy = _narrow_copy(library, module.weight, narrow)
    own = type(module).forward
    parameters = module._parameters

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if args or kwargs or not _usable(x, weight) or (bias is not None and not _usable(x, bias)):
            return own(module, x, *args, **kwargs)
        assert weight is not None
        if x.shape[-1] != weight.shape[1]:
            return own(module, x)  # which words the error
        read = copy.of(weight) if copy is not None else weight
        return skinny_linear_native(library, x if x.is_contiguous() else x.contiguous(), read, bias)

    return module.in_features, [forward]


def block_forward(library: Library, module: nn.Module) -> Forward | None:
    """What replaces the work of a layer whose weight is in blocks, without a trial: its numbers are the blocks' own.

    It is the `forward` of a linear layer, and the `look_up` of an embedding.
    """
    if type(module) is BlockLinear:
        return _block_linear_forward(library, module)
    if type(module) is BlockEmbedding:
        return _block_look_up(library, module)
    return None


def _block_linear_forward(library: Library, module: BlockLinear) -> Forward:
    own = type(module).forward
    blocks = module.blocks
    buffers, parameters = module._buffers, module._parameters

    def forward(x: Tensor) -> Tensor:
        bias = parameters.get("bias")
        if buffers.get("data") is not blocks.data or not _fits(x, blocks, bias):
            return own(module, x)
        return skinny_linear_native(library, x if x.is_contiguous() else x.contiguous(), blocks, bias)

    return forward


def _fits(x: Any, blocks: Blocks, bias: Tensor | None) -> bool:
    """Whether rows are float32 on the CPU and of the blocks' width, and nobody wants a gradient of them."""
    if type(x) is not Tensor or x.dtype is not _float32 or not x.is_cpu or x.shape[-1] != blocks.columns:
        return False
    return not (torch.is_grad_enabled() and x.requires_grad) and (bias is None or _usable(x, bias))


def _block_look_up(library: Library, module: BlockEmbedding) -> Forward:
    own = type(module).look_up
    blocks = module.blocks
    buffers = module._buffers

    def look_up(ids: Tensor) -> Tensor:
        if buffers.get("data") is not blocks.data or module.like.dtype is not _float32 or not ids.is_cpu:
            return own(module, ids)
        return widen_native(library, blocks, ids)

    return look_up


def eps_name(module: nn.Module) -> str | None:
    """What a norm calls its eps; None if it is no RMS norm, or has more than a weight, which no replacement reads."""
    weight = module._parameters.get("weight")
    if not type(module).__name__.endswith("RMSNorm") or weight is None or weight.dim() != 1:
        return None
    if len(module._parameters) > 1 or module._buffers:
        return None
    return next((name for name in EPS_NAMES if isinstance(getattr(module, name, None), float)), None)


def norm_candidates(library: Library, module: nn.Module) -> Candidates:
    name, weight = eps_name(module), module._parameters.get("weight")
    if name is None or weight is None:
        return None
    return weight.shape[0], [_norm_forward(library, module, name, offset) for offset in (0.0, 1.0)]


def _norm_forward(library: Library, module: nn.Module, eps_name: str, offset: float) -> Forward:
    own = type(module).forward
    parameters = module._parameters

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        weight = parameters.get("weight")
        if args or kwargs or not _usable(x, weight):
            return own(module, x, *args, **kwargs)
        assert weight is not None
        if x.shape[-1] != weight.shape[0]:
            return own(module, x)
        return rms_norm_native(
            library, x if x.is_contiguous() else x.contiguous(), weight, getattr(module, eps_name), offset
        )

    return forward


def mlp_candidates(library: Library, module: nn.Module, narrow: dict[Tensor, Narrow]) -> Candidates:
    children = module._modules
    if not set(MLP_CHILDREN) <= children.keys() or not hasattr(module, "act_fn"):
        return None
    others = [child for name, child in children.items() if child is not None and name not in MLP_CHILDREN]
    if has_tensors(module, recurse=False) or any(has_tensors(child) for child in others):
        return None  # which the replacement would not read
    for name in MLP_CHILDREN:
        child = children[name]
        if _plain_linear(child):
            _narrow_copy(library, child.weight, narrow)
        elif type(child) is not BlockLinear:
            return None
    width: int = module.get_submodule("gate_proj").in_features  # type: ignore[assignment]  # of either kind
    return width, [_mlp_forward(library, module, kind, narrow) for kind in KINDS if activates(module, kind)]


def has_tensors(module: nn.Module, recurse: bool = True) -> bool:
    """Whether a module has parameters or buffers, or a part of it does."""
    return any(True for _ in chain(module.parameters(recurse), module.buffers(recurse)))


def listened_to(child: nn.Module | None) -> bool:
    """Whether somebody has put a hook on a module, which must be called itself then."""
    return child is not None and bool(child._forward_hooks or child._forward_pre_hooks)


def learns(module: nn.Module, x: Tensor) -> bool:
    """Whether somebody wants a gradient of an input, or of a parameter of a module or of its parts."""
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or any(parameter.requires_grad for parameter in module.parameters())


def activates(module: nn.Module, kind: str) -> bool:
    """Whether the MLP's activation is this one. On small numbers gelu and its tanh form agree: look further out."""
    x = torch.linspace(-8, 8, 257, dtype=_float32, device="cpu")
    activation: Any = module.act_fn
    try:
        got = activation(x)
    except (RuntimeError, TypeError, ValueError):
        return False
    return type(got) is Tensor and torch.allclose(
        got, gated_unit_reference(x, torch.ones_like(x), kind), rtol=1e-5, atol=1e-6
    )


def _mlp_forward(library: Library, module: nn.Module, kind: str, narrow: Mapping[Tensor, Narrow]) -> Forward:
    own = type(module).forward
    children = module._modules
    holder: dict[str, Any] = children if "act_fn" in children else module.__dict__
    activation = holder.get("act_fn")

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        gate, up, down = (_affine(x, children[name], narrow) for name in MLP_CHILDREN)
        if gate is None or up is None or down is None or holder.get("act_fn") is not activation:
            return own(module, x, *args, **kwargs)
        if args or kwargs or any(map(listened_to, children.values())):
            return own(module, x, *args, **kwargs)
        if x.shape[-1] != shape_of(gate[0])[1]:
            return own(module, x)
        return gated_mlp_native(library, x if x.is_contiguous() else x.contiguous(), gate, up, down, kind)

    return forward


def _affine(x: Tensor, child: nn.Module | None, narrow: Mapping[Tensor, Narrow]) -> tuple[Stored, Tensor | None] | None:
    """A child's weight and bias; None if it was exchanged, by an adapter perhaps, and must be called itself."""
    if type(child) is not nn.Linear and type(child) is not BlockLinear:
        return None
    bias = child._parameters.get("bias")
    if bias is not None and not _usable(x, bias):
        return None
    if type(child) is BlockLinear:
        wants_gradient = torch.is_grad_enabled() and x.requires_grad
        if type(x) is not Tensor or x.dtype is not _float32 or not x.is_cpu or not child.data.is_cpu or wants_gradient:
            return None
        return child.blocks, bias
    weight = child._parameters.get("weight")
    if not _usable(x, weight):
        return None
    assert weight is not None
    return narrow[weight].of(weight) if weight in narrow else weight, bias
