"""A transformers model's norms and MLPs through `torch.compile`, for as long as one asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

KINDS = ("RMSNorm", "LayerNorm", "MLP")
"""Endings of the names of classes whose `forward` is arithmetic on one tensor: small kernels that can be fused."""


class Compiled:
    """Compiled forwards, in force inside `with compiled:`; it can be entered again while it is entered.

    Args:
        model: its norms and MLPs are compiled, each class once, for any number of rows, when they are first called.
        backend: of `torch.compile`.
    """

    def __init__(self, model: nn.Module, backend: str = "inductor") -> None:
        self._forwards = [
            (module, _compiled(module, backend))
            for module in model.modules()
            if type(module).__name__.endswith(KINDS) and "forward" not in module.__dict__
        ]
        self._entered = 0

    def __len__(self) -> int:
        return len(self._forwards)

    def __enter__(self) -> Compiled:
        if self._entered == 0:
            for module, forward in self._forwards:
                module.__dict__["forward"] = forward
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            for module, _forward in self._forwards:
                module.__dict__.pop("forward", None)


def _compiled(module: nn.Module, backend: str) -> Callable[..., Any]:
    forward = type(module).forward.__get__(module)
    compiled: Callable[..., Any] = torch.compile(forward, dynamic=True, backend=backend)
    return compiled
