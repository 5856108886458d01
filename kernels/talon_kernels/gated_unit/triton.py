"""The gate of a gated MLP in Triton."""

# The body of a kernel is in Triton's language, with types of its own.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = {"BLOCK": 1024}
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit(do_not_specialize=["count"])
def _gate(gate, up, out, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """`BLOCK` numbers; grid `(count / BLOCK,)`, rounded up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < count, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < count, other=0.0).to(tl.float32)
    inner = g
    if TANH:  # 0.5 (1 + tanh(a)) is the logistic function of 2 a, which cancels nowhere
        inner = 1.5957691216057308 * (g + 0.044715 * g * g * g)
    small = tl.exp(-tl.abs(inner))
    share = tl.where(inner < 0, small, 1.0) / (1.0 + small)
    tl.store(out + at, (g * share * u).to(out.dtype.element_ty), mask=at < count)


def gated_unit_triton(gate: Tensor, up: Tensor, kind: str) -> Tensor:
    """Shapes as in `gated_unit`; contiguous, on one device."""
    out = torch.empty_like(gate)
    if out.numel():
        grid = (triton.cdiv(out.numel(), TILE["BLOCK"]),)
        with torch.cuda.device_of(gate):
            _gate[grid](gate, up, out, out.numel(), TANH=kind == "gelu_tanh", **TILE, **OPTIONS)
    return out


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """All that is ever compiled, but for float16, which is as bfloat16."""
    for name in ("bf16", "fp32"):
        for tanh in (False, True):
            constants = {"TANH": tanh, **TILE}
            types = {"count": "i32"} | dict.fromkeys(constants, "constexpr")
            known = {n: types.get(n, f"*{name}") for n in _gate.arg_names}
            yield f"gated_unit {name}{' tanh' * tanh}", _gate, known, constants, OPTIONS | {"between": not tanh}
