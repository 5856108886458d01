"""Rotary position embedding of queries and keys, and the write of keys and values into their pages, in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from talon_kernels.rotary_write.reference import rotary_write_reference
from talon_kernels.triton_runtime import takes_triton

__all__ = ["rotary_write"]


def rotary_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    rows: Tensor,
    *,
    interleaved: bool = False,
    of_pairs: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Turn queries and keys by the angles of their positions; write keys and values to pages, and return queries.

    Of each head the first `rotary` dimensions are turned, in pairs: a pair `(a, b)` becomes
    `(a cos - b sin, b cos + a sin)`. What is behind them stays. With the triton backend it is one launch, which
    computes in float32 and rounds once, and reads in device memory where rows go, so a captured CUDA graph can go on
    with new places.

    Args:
        query: shape `(rows, heads, head_dim)`; float32, bfloat16 or float16.
        key: shape `(rows, kv_heads, head_dim)`, as query; `heads` is a multiple of `kv_heads`.
        value: shape `(rows, kv_heads, value_dim)`, likewise.
        cos: of each dimension that is turned, shape `(rows, rotary)`, as query or float32; `rotary` is even and at most
            `head_dim`.
        sin: likewise.
        keys: shape `(pages, kv_heads, page_rows, head_dim)`, contiguous, as query; written in place.
        values: shape `(pages, kv_heads, page_rows, value_dim)`, likewise.
        pages: the page that each key and value goes to, shape `(rows,)`, int64, contiguous. That there is such a page
            is not checked: it would mean to wait for the device. Of rows that go to one place any may be there
            afterwards.
        rows: the row of that page, likewise.
        interleaved: whether dimensions `2 i` and `2 i + 1` are a pair; else `i` and `i + rotary / 2` are.
        of_pairs: whether cos and sin have one number for each pair, shape `(rows, rotary / 2)`.
        backend: "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is first used) or "reference";
            None takes triton for tensors on a GPU, if it can run.

    Returns:
        The turned queries, the shape of query, contiguous.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    _check_shapes(query, key, value, cos, sin, 2 if of_pairs else 1)
    _check_pages(key, value, keys, values, pages, rows)
    if takes_triton("rotary_write", backend, query.device, dtype=query.dtype):
        from talon_kernels.rotary_write.triton import rotary_write_triton

        query, key, value, cos, sin = (one.contiguous() for one in (query, key, value, cos, sin))
        return rotary_write_triton(query, key, value, cos, sin, keys, values, pages, rows, interleaved, of_pairs)
    return rotary_write_reference(query, key, value, cos, sin, keys, values, pages, rows, interleaved, of_pairs)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, times: int) -> None:
    given = {"query": query, "key": key, "value": value}
    if any(one.dim() != 3 or len(one) != len(query) for one in given.values()) or query.shape[2] != key.shape[2]:
        raise ValueError(
            f"query is (rows, heads, head_dim), key (rows, kv_heads, head_dim), value (rows, kv_heads, value_dim); "
            f"got {', '.join(str(tuple(one.shape)) for one in given.values())}"
        )
    if not key.shape[1] or value.shape[1] != key.shape[1] or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"keys and values have the same heads, and queries a multiple of them; query has {query.shape[1]}, "
            f"key {key.shape[1]}, value {value.shape[1]}"
        )
    rotary = times * cos.shape[-1] if cos.dim() else 0
    if cos.dim() != 2 or len(cos) != len(query) or cos.shape != sin.shape or not 0 < rotary <= query.shape[2]:
        raise ValueError(
            f"cos and sin are (rows, rotary), or half as wide for pairs, rotary at most {query.shape[2]}, the head's "
            f"dimensions; got {tuple(cos.shape)} and {tuple(sin.shape)} for {len(query)} rows"
        )
    if rotary % 2:
        raise ValueError(f"dimensions are turned in pairs, and {rotary} is odd")
    for name, one in (given | {"cos": cos, "sin": sin}).items():
        types = (query.dtype,) if name in given else (query.dtype, torch.float32)
        if one.dtype not in types or one.device != query.device or not one.is_floating_point():
            raise ValueError(
                f"query is {query.dtype} on {query.device} and {name} {one.dtype} on {one.device}; "
                "they must be of one floating-point type, or cos and sin float32, on one device"
            )
    if cos.dtype != sin.dtype:
        raise ValueError(f"cos is {cos.dtype} and sin {sin.dtype}; they must be of one type")


def _check_pages(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, pages: Tensor, rows: Tensor) -> None:
    for name, buffer, new in (("keys", keys, key), ("values", values, value)):
        if buffer.dim() != 4 or (buffer.shape[1], buffer.shape[3]) != tuple(new.shape[1:]):
            raise ValueError(
                f"{name} is (pages, {new.shape[1]}, page_rows, {new.shape[2]}) for rows of {tuple(new.shape[1:])}; "
                f"got {tuple(buffer.shape)}"
            )
        if (buffer.dtype, buffer.device) != (key.dtype, key.device) or not buffer.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {key.dtype} on {key.device}, as the rows that are written; "
                f"got {buffer.dtype} on {buffer.device} with strides {buffer.stride()}"
            )
    if keys.shape[:3] != values.shape[:3]:
        raise ValueError(
            f"keys and values have the same pages, of as many rows; got {tuple(keys.shape)}, {tuple(values.shape)}"
        )
    for name, numbers in (("pages", pages), ("rows", rows)):
        if numbers.shape != key.shape[:1] or numbers.dtype is not torch.int64 or numbers.device != key.device:
            raise ValueError(
                f"{name} is ({len(key)},), int64 on {key.device}, as there are so many rows; "
                f"got {tuple(numbers.shape)}, {numbers.dtype} on {numbers.device}"
            )
        if not numbers.is_contiguous():
            raise ValueError(f"{name} must be contiguous; its stride is {numbers.stride(0)}")
