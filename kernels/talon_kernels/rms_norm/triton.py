"""Root-mean-square normalisation in Triton, a program for each row, which it reads once."""

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

from talon_kernels.triton_runtime import check_width


@triton.jit(do_not_specialize=["hidden"])
def _normalise(
    x,
    residual,
    weight,
    total,
    result,
    hidden,
    eps,
    offset,
    BLOCK: tl.constexpr,
):
    """One row; grid `(rows,)`. Without a residual nothing is added, and `total` is not written."""
    row = tl.program_id(0).to(tl.int64) * hidden
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    number = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        number += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
        rounded = number.to(total.dtype.element_ty)
        tl.store(total + row + column, rounded, mask=inside)
        number = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(number * number, 0) / hidden + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(result + row + column, (number * scale * factor).to(result.dtype.element_ty), mask=inside)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """Shapes as in `rms_norm`; contiguous, on one device."""
    result = torch.empty_like(x)
    _launch(x, None, weight, None, result, eps, offset)
    return result


def add_rms_norm_triton(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor]:
    """Shapes as in `add_rms_norm`; contiguous, on one device."""
    total, result = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, total, result, eps, offset)
    return total, result


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, total: Tensor | None, result: Tensor, eps: float, offset: float
) -> None:
    hidden = x.shape[-1]
    check_width("rms_norm", hidden)
    if x.numel():
        block = triton.next_power_of_2(hidden)
        with torch.cuda.device_of(x):
            _normalise[(x.numel() // hidden,)](
                x, residual, weight, total, result, hidden, eps, offset, BLOCK=block, **_options(block)
            )


def _options(block: int) -> dict[str, Any]:
    return {"num_warps": min(16, max(1, block // 512)), "enable_fp_fusion": True}


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """What stands for all that is compiled: name, function, signature, constants and options of each."""
    types = {"hidden": "i32", "eps": "fp32", "offset": "fp32"}
    for name in ("bf16", "fp32"):
        for block in (64, 4096, 16384):
            for added in (True, False):
                constants = {"BLOCK": block} | ({} if added else {"residual": None, "total": None})
                known = {n: "constexpr" if n in constants else types.get(n, f"*{name}") for n in _normalise.arg_names}
                marks = {"between": block == 4096 or not added}
                title = f"{'add_' * added}rms_norm {name} {block}"
                yield title, _normalise, known, constants, _options(block) | marks
