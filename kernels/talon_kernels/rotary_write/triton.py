"""Rotary position embedding and the write into pages in Triton."""

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


@triton.jit
def _turned(x, column, other, inside, moves, c, s):
    """Numbers of heads at `x`, each with the one beside it in its pair; those that do not move keep their bits."""
    number = tl.load(x + column, mask=inside, other=0.0)
    beside = tl.load(x + other, mask=inside & moves, other=0.0).to(tl.float32)
    return tl.where(moves, (number.to(tl.float32) * c + beside * s).to(number.dtype), number)


@triton.jit
def _rotate(
    query, key, value, cos, sin, result, keys, values, pages, rows,
    GROUP: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_WIDTH: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, ROTARY: tl.constexpr, PAGE_ROWS: tl.constexpr,
    INTERLEAVED: tl.constexpr, OF_PAIRS: tl.constexpr,
):  # fmt: skip
    """One row of one head of keys and values, and of the queries that share it; grid `(rows, kv_heads)`."""
    row = tl.program_id(0).to(tl.int64)
    head = row * tl.num_programs(1) + tl.program_id(1)
    column = tl.arange(0, HEAD_WIDTH)
    inside, moves = column < HEAD_DIM, column < ROTARY
    if INTERLEAVED:
        first, pair = column % 2 == 0, column // 2
        other = tl.where(first, column + 1, column - 1)
    else:
        first = column < ROTARY // 2
        other = tl.where(first, column + ROTARY // 2, column - ROTARY // 2)
        pair = tl.where(first, column, other)
    angle = row * (ROTARY // 2) + pair if OF_PAIRS else row * ROTARY + column
    c = tl.load(cos + angle, mask=moves, other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=moves, other=0.0).to(tl.float32)
    s = tl.where(first, -s, s)

    page = tl.load(pages + row) * tl.num_programs(1) + tl.program_id(1)
    place = page * PAGE_ROWS + tl.load(rows + row)
    turned = _turned(key + head * HEAD_DIM, column, other, inside, moves, c, s)
    tl.store(keys + place * HEAD_DIM + column, turned, mask=inside)
    wide = tl.arange(0, VALUE_WIDTH)
    copied = tl.load(value + head * VALUE_DIM + wide, mask=wide < VALUE_DIM, other=0.0)
    tl.store(values + place * VALUE_DIM + wide, copied, mask=wide < VALUE_DIM)

    of_query = tl.arange(0, HEADS)[:, None]
    at = (head * GROUP + of_query) * HEAD_DIM
    inside = (of_query < GROUP) & inside[None, :]
    turned = _turned(query + at, column[None, :], other[None, :], inside, moves[None, :], c[None, :], s[None, :])
    tl.store(result + at + column[None, :], turned, mask=inside)


def rotary_write_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    rows: Tensor,
    interleaved: bool,
    of_pairs: bool,
) -> Tensor:
    """Shapes as in `rotary_write`; contiguous, on one device. What is compiled depends on the model alone.

    Raises:
        ValueError: if the queries that share a head of keys have more numbers than a program holds.
    """
    result = torch.empty_like(query)
    count, heads, head_dim = query.shape
    kv_heads, value_dim = value.shape[1:]
    rotary = (2 if of_pairs else 1) * cos.shape[1]
    sizes = _sizes(heads // kv_heads, head_dim, value_dim)
    check_width("rotary_write", max(sizes["HEADS"] * sizes["HEAD_WIDTH"], sizes["VALUE_WIDTH"]))
    if count:
        how = {"ROTARY": rotary, "PAGE_ROWS": keys.shape[2], "INTERLEAVED": interleaved, "OF_PAIRS": of_pairs}
        with torch.cuda.device_of(query):
            _rotate[(count, kv_heads)](
                query, key, value, cos, sin, result, keys, values, pages, rows, **sizes, **how, **_options(sizes)
            )
    return result


def _sizes(group: int, head_dim: int, value_dim: int) -> dict[str, Any]:
    """The heads and dimensions of a program, and the powers of two that have room for them."""
    given = {"GROUP": group, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim}
    rooms = zip(("HEADS", "HEAD_WIDTH", "VALUE_WIDTH"), map(triton.next_power_of_2, given.values()), strict=True)
    return given | dict(rooms)


def _options(sizes: dict[str, Any]) -> dict[str, Any]:
    numbers = sizes["HEADS"] * sizes["HEAD_WIDTH"]
    return {"num_warps": min(16, max(1, numbers // 512)), "enable_fp_fusion": True}


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """What stands for all that is compiled: name, function, signature, constants and options of each."""
    shapes = ((1, 64, 64, False), (4, 128, 128, False), (4, 80, 32, True), (64, 256, 256, False))
    for name, of_angles in (("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "fp32")):
        for group, head_dim, rotary, interleaved in shapes:
            sizes = _sizes(group, head_dim, head_dim)
            how = {"ROTARY": rotary, "PAGE_ROWS": 64, "INTERLEAVED": interleaved, "OF_PAIRS": interleaved}
            constants = {**sizes, **how}
            types = dict.fromkeys(("pages", "rows"), "*i64") | dict.fromkeys(("cos", "sin"), f"*{of_angles}")
            types |= dict.fromkeys(constants, "constexpr")
            known = {n: types.get(n, f"*{name}") for n in _rotate.arg_names}
            marks = {"between": group == 4, "hardest": group == 64}
            yield (
                f"rotary_write {name} {of_angles} {group}x{head_dim}",
                _rotate,
                known,
                constants,
                _options(sizes) | marks,
            )
