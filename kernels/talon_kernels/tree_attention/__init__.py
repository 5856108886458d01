"""Attention of draft trees over a key/value cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from talon_core.attention import TreeLayout
from talon_kernels.native import load, unavailable
from talon_kernels.tree_attention.layout import PerLayout
from talon_kernels.tree_attention.native import tree_attention_native
from talon_kernels.tree_attention.reference import tree_attention_reference
from talon_kernels.tree_attention.sdpa import tree_attention_sdpa
from talon_kernels.triton_runtime import triton_cannot

__all__ = ["native_cannot", "tree_attention", "triton_cannot"]

BACKENDS = ("native", "triton", "sdpa", "reference")


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attention of tree nodes over their sequence's prefix, their own ancestors and themselves.

    With the native backend an output has the same bits as in plain decoding of one token at the same prefix, whatever
    the tree around the node, the batch, and the number of threads: keys are summed by position, never by row.

    Args:
        query: shape `(heads, queries, head_dim)`: the queries of all sequences, one after another.
        key: shape `(batch, kv_heads, capacity, head_dim)`, any strides; `heads` is a multiple of `kv_heads` and head
            `h` uses head `h // (heads // kv_heads)`. Rows past the prefix and the tree are not read.
        value: shape `(batch, kv_heads, capacity, value_dim)`, any strides.
        layout: who may attend to whom. Make it once per forward pass: what is derived from it is kept for all layers.
        scale: factor of the scores.
        softcap: scores become `softcap * tanh(score / softcap)`.
        window: a key is visible only if its position is less than `window` behind the query's.
        sinks: one more score for each head, shape `(heads,)`, in the denominator only.
        backend: "native" (float32 on the CPU), "triton" (on GPUs; on the CPU if TRITON_INTERPRET=1 is set before it is
            first used), "sdpa" (no softcap, no sinks) or "reference"; None takes the first of them that can run, but
            never triton on the CPU.

    Returns:
        Shape `(heads, queries, value_dim)`, not contiguous in general.

    Raises:
        ValueError: if shapes, types or devices do not fit, or the backend asked for cannot run.
    """
    asked = (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device, softcap, window)
    passed = _passed(layout)
    if asked not in passed or sinks is not None or key.device != query.device or value.device != query.device:
        _check(query, key, value, layout, softcap, window, sinks)
        passed.add(asked)
    if backend not in (None, *BACKENDS):
        raise ValueError(f"no backend '{backend}' of tree_attention; there are: {', '.join(BACKENDS)}")
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "window": window, "sinks": sinks}
    for name, cannot, compute in (("native", native_cannot, _native), ("triton", triton_cannot, _triton)):
        if backend not in (None, name) or (backend is None and name == "triton" and query.device.type == "cpu"):
            continue
        why = cannot(query.device, query.dtype)
        learns = query.requires_grad or key.requires_grad or value.requires_grad
        if why is None and learns and torch.is_grad_enabled():
            why = "it has no gradient; use torch.no_grad()"
        if why is None:
            return compute(query, key, value, layout, **options)
        if backend == name:
            raise ValueError(f"backend '{name}' cannot be used here: {why}")
    if backend in (None, "sdpa"):
        if softcap is None and sinks is None:
            return tree_attention_sdpa(query, key, value, layout, scale=scale, window=window)
        if backend == "sdpa":
            raise ValueError("backend 'sdpa' cannot be used here: it knows neither softcap nor sinks; use 'reference'")
    return tree_attention_reference(query, key, value, layout, scale=scale, softcap=softcap, window=window, sinks=sinks)


def _native(query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, **options: Any) -> Tensor:
    library = load()
    assert library is not None
    return tree_attention_native(library, query, key, value, layout, **options)


def _triton(query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, **options: Any) -> Tensor:
    from talon_kernels.tree_attention.triton import tree_attention_triton

    return tree_attention_triton(query, key, value, layout.packed(query.device), **options)


_passed: PerLayout[set[tuple[object, ...]]] = PerLayout(lambda _: set())
"""What was found to fit a layout: all layers of a model ask the same, and checking costs as much as a small tree."""


def native_cannot(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the native backend cannot run on such tensors, as the end of a sentence, or None if it can."""
    if device.type != "cpu":
        return f"it runs on the CPU, not on {device}"
    if dtype is not torch.float32:
        return f"it computes in float32, not in {dtype}"
    return unavailable()


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: TreeLayout,
    softcap: float | None,
    window: int | None,
    sinks: Tensor | None,
) -> None:
    if query.dim() != 3 or not key.dim() == value.dim() == 4 or key.shape[:3] != value.shape[:3]:
        raise ValueError(
            "query is (heads, queries, head_dim), key is (batch, kv_heads, capacity, head_dim) and value is "
            "(batch, kv_heads, capacity, value_dim); "
            f"got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    heads, queries, head_dim = query.shape
    batch, kv_heads, capacity, _ = key.shape
    if key.shape[3] != head_dim or kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in head_dim, "
            "or heads is no multiple of kv_heads"
        )
    if not (query.dtype == key.dtype == value.dtype and query.device == key.device == value.device):
        raise ValueError(
            f"query, key and value are {query.dtype} on {query.device}, {key.dtype} on {key.device} and "
            f"{value.dtype} on {value.device}; they must be the same"
        )
    if len(layout.parents) != batch:
        raise ValueError(f"the layout has {len(layout.parents)} trees, the keys are of {batch} sequences")
    for sequence, parents in enumerate(layout.parents):
        prefix, first = int(layout.prefix_lengths[sequence]), int(layout.first_queries[sequence])
        if prefix < 0 or prefix + len(parents) > capacity:
            raise ValueError(
                f"sequence {sequence} has a prefix of {prefix} and {len(parents)} nodes, its key buffer {capacity} rows"
            )
        if not 0 <= first <= len(parents):
            raise ValueError(f"sequence {sequence} has {len(parents)} nodes, so its queries cannot start at {first}")
    if layout.queries != queries:
        raise ValueError(f"the layout has {layout.queries} queries, the query {queries}")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap is positive or None, not {softcap}")
    if window is not None and window < 1:
        raise ValueError(f"window is at least 1 or None, not {window}")
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks has shape {tuple(sinks.shape)}, not ({heads},)")
