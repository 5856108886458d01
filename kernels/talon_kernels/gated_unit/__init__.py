"""The gate of a gated MLP, `act(gate) * up`, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.gated_unit.native import KINDS, gated_unit_native
from talon_kernels.gated_unit.reference import gated_unit_reference
from talon_kernels.native import chosen

__all__ = ["gated_unit"]


def gated_unit(gate: Tensor, up: Tensor, kind: str, *, backend: str | None = None) -> Tensor:
    """`act(gate) * up`, element by element.

    With the native backend an element of the result has the same bits wherever it lies.

    Args:
        gate: any shape, float32 on the CPU.
        up: as gate.
        kind: the activation, "silu" or "gelu_tanh".
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        The shape of gate, contiguous.

    Raises:
        ValueError: if shapes, types, devices or the kind do not fit, or the backend asked for cannot run.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gate and up have one shape; got {tuple(gate.shape)} and {tuple(up.shape)}")
    for tensor in (gate, up):
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"gated_unit takes float32 on the CPU, got {tensor.dtype} on {tensor.device}")
    if kind not in KINDS:
        raise ValueError(f"no activation '{kind}'; there are: {', '.join(KINDS)}")
    library = chosen("gated_unit", backend)
    if library is None:
        return gated_unit_reference(gate, up, kind)
    return gated_unit_native(library, gate.contiguous(), up.contiguous(), kind)
