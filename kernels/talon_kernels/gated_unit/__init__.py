"""The gate of a gated MLP, `act(gate) * up`, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.gated_unit.native import KINDS, gated_unit_native
from talon_kernels.gated_unit.reference import gated_unit_reference
from talon_kernels.native import chosen, on_the_cpu
from talon_kernels.stored import as_stored
from talon_kernels.triton_runtime import takes_triton

__all__ = ["gated_unit"]


def gated_unit(gate: Tensor, up: Tensor, kind: str, *, backend: str | None = None) -> Tensor:
    """`act(gate) * up`, element by element.

    With the native backend an element of the result has the same bits wherever it lies. That of Triton computes in
    float32 and rounds once.

    Args:
        gate: any shape; float32 on the CPU, and on a GPU bfloat16 or float16 as well.
        up: as gate.
        kind: the activation, "silu" or "gelu_tanh".
        backend: "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is first used), "native" (C, on
            the CPU) or "reference"; None takes triton for tensors on a GPU and native on the CPU, if they can run.

    Returns:
        The shape of gate, contiguous.

    Raises:
        ValueError: if shapes, types, devices or the kind do not fit, or the backend asked for cannot run.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gate and up have one shape; got {tuple(gate.shape)} and {tuple(up.shape)}")
    if (gate.dtype, gate.device) != (up.dtype, up.device) or gate.dtype is torch.float64:
        raise ValueError(
            f"gate is {gate.dtype} on {gate.device} and up {up.dtype} on {up.device}; "
            "they must be of one type, float32 or a smaller one, on one device"
        )
    if kind not in KINDS:
        raise ValueError(f"no activation '{kind}'; there are: {', '.join(KINDS)}")
    if takes_triton("gated_unit", backend, gate.device, ("native",), gate.dtype):
        from talon_kernels.gated_unit.triton import gated_unit_triton

        return gated_unit_triton(gate.contiguous(), up.contiguous(), kind)
    library = chosen("gated_unit", backend) if on_the_cpu("gated_unit", backend, gate) else None
    if library is None:
        return gated_unit_reference(gate, up, kind)
    return gated_unit_native(library, as_stored(gate), as_stored(up), kind)
