"""A gated MLP in one call: two products, the gate, and the product back."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.gated_mlp.native import gated_mlp_native
from talon_kernels.gated_mlp.reference import gated_mlp_reference
from talon_kernels.gated_unit.native import KINDS
from talon_kernels.native import chosen
from talon_kernels.stored import as_stored

__all__ = ["gated_mlp"]


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, kind: str, *, backend: str | None = None) -> Tensor:
    """`(act(x @ gate.T) * (x @ up.T)) @ down.T`.

    With the native backend the result has the bits of `skinny_linear`, `gated_unit` and `skinny_linear` one after the
    other, hence a row's do not depend on the rows beside it.

    Args:
        x: shape `(rows, in)`, float32 on the CPU.
        gate: shape `(hidden, in)`.
        up: shape `(hidden, in)`.
        down: shape `(out, hidden)`.
        kind: the activation, "silu" or "gelu_tanh".
        backend: "native" or "reference"; None takes native if the kernels can be built here.

    Returns:
        Shape `(rows, out)`, contiguous.

    Raises:
        ValueError: if shapes, types, devices or the kind do not fit, or the backend asked for cannot run.
    """
    tensors = (x, gate, up, down)
    if any(t.dim() != 2 for t in tensors) or not (
        gate.shape == up.shape and gate.shape[1] == x.shape[1] and down.shape[1] == gate.shape[0]
    ):
        raise ValueError(
            "x, gate, up and down are (rows, in), (hidden, in), (hidden, in) and (out, hidden); "
            f"got {[tuple(t.shape) for t in tensors]}"
        )
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"gated_mlp takes float32 on the CPU, got {tensor.dtype} on {tensor.device}")
    if kind not in KINDS:
        raise ValueError(f"no activation '{kind}'; there are: {', '.join(KINDS)}")
    library = chosen("gated_mlp", backend)
    if library is None:
        return gated_mlp_reference(x, gate, up, down, kind)
    x, gate, up, down = map(as_stored, tensors)
    return gated_mlp_native(library, x, (gate, None), (up, None), (down, None), kind)
