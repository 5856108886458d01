"""A transformers model's norms and MLPs through `torch.compile`, for as long as one asks for it."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from talon_core.runtime.modules import Modules
from talon_kernels.acceleration import Acceleration
from talon_kernels.replacements import Forward

KINDS = ("RMSNorm", "LayerNorm", "MLP")
"""Endings of the names of classes whose `forward` is arithmetic on one tensor: small kernels that can be fused."""


def compile_layers(model: nn.Module, backend: str = "inductor") -> Acceleration:
    """Prepare compiled forwards for a model's norms and MLPs. Nothing is changed, or compiled, yet.

    Args:
        model: its layers are compiled, each class once, for any number of rows, when they are first called.
        backend: of `torch.compile`.

    Returns:
        A context; see `Acceleration`.

    Raises:
        ValueError: if part of the model is compiled already: that runs as it is written while TALON decodes.
    """
    _, compiled = Modules(model).mode()
    if compiled:
        raise ValueError(
            f"{type(model).__name__} has parts that are compiled already; "
            "accelerator 'compile' needs the model as it was loaded"
        )
    replaced = [
        (kind, module, _compiled(module, backend))
        for module in model.modules()
        for kind in KINDS
        if type(module).__name__.endswith(kind) and "forward" not in module.__dict__
    ]
    return Acceleration(replaced, Counter(), None)


def _compiled(module: nn.Module, backend: str) -> Forward:
    forward = type(module).forward.__get__(module)
    compiled: Forward = torch.compile(forward, dynamic=True, backend=backend)
    return compiled
