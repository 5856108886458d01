"""Tree attention in Triton: split over the keys by a schedule that each program works out on the device.

The queries of one key/value head, all its heads' rows together, are cut into tiles of `BLOCK_M` rows: row `m` of a
sequence is query `m // group`, head `m % group`. The keys of a sequence are cut into tiles too, first the prefix, then
the tree, so that a tile is of one kind. A program attends from one tile of queries to some consecutive tiles of keys,
its *split*; the splits of one tile of queries stand in consecutive *slots*, and a second kernel merges them. How many
splits there are follows from the layout's numbers in device memory, never from the host: launches depend on shapes
alone, and can be captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import gcd
from typing import Any

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from talon_core.attention import PackedLayout

LOG2E = 1.4426950408889634


@attrs.frozen
class Blocks:
    """How the work is cut.

    Attributes:
        m: rows of a tile of queries.
        n: keys of a tile; 32 or 64.
        merged: rows that one program of the second kernel merges, and
        slots: how many splits at a time.
        warps: of the first kernel.
        stages: tiles of keys in flight.
    """

    m: int
    n: int
    merged: int
    slots: int
    warps: int
    stages: int


def blocks(head_dim: int, value_dim: int, rows: int, dtype: torch.dtype) -> Blocks:
    """How to cut the work if a sequence has about `rows` rows of queries for each key/value head."""
    wide = max(16, triton.next_power_of_2(max(head_dim, value_dim)))
    m = min(max(16, triton.next_power_of_2(rows)), 128)
    n = 64
    warps = 4 if m <= 64 else 8
    stages = 2
    return Blocks(m, n, 4, 8, warps, stages)


@triton.jit
def _tanh(x):
    """To a few rounding steps of the result itself, near 0 too."""
    size = tl.abs(x)
    square = x * x
    near = -5.70498872745e-3 * square + 2.06390887954e-2  # the polynomial of Cephes' tanhf
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    near = near * square * x + x
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def _tiles(prefix, nodes, window, BLOCK_N: tl.constexpr, WINDOWED: tl.constexpr):
    """Tiles of keys of a sequence, or of each: the first one, the end of the prefix's, the end of all."""
    first = prefix * 0
    if WINDOWED:  # the last key that no query sees is `window` behind a root
        first = tl.maximum(prefix - window + 1, 0) // BLOCK_N
    middle = tl.cdiv(prefix, BLOCK_N)
    return first, middle, middle + tl.cdiv(nodes, BLOCK_N)


@triton.jit
def _schedule(
    rows,
    batch,
    programs,
    window,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """For each sequence its tiles of queries, and in how many splits they attend to its keys, both `(BATCH,)`."""
    row = tl.arange(0, BATCH)
    prefix = tl.load(rows + row * 4, mask=row < batch, other=0)
    nodes = tl.load(rows + row * 4 + 1, mask=row < batch, other=0)
    first_query = tl.load(rows + row * 4 + 2, mask=row < batch, other=0)
    first, _, end = _tiles(prefix, nodes, window, BLOCK_N, WINDOWED)
    query_tiles = tl.cdiv((nodes - first_query) * GROUP, BLOCK_M)
    share = tl.maximum(tl.cdiv(tl.sum(query_tiles * (end - first), 0), programs), 1)
    return query_tiles, tl.cdiv(end - first, share)


@triton.jit
def _place(counts, item, BATCH: tl.constexpr):
    """Which sequence has the `item`-th of all `counts` things (BATCH: none), and which of its own that is."""
    sequence = tl.sum((tl.cumsum(counts, 0) <= item).to(tl.int32), 0)
    return sequence, item - tl.sum(tl.where(tl.arange(0, BATCH) < sequence, counts, 0), 0)


@triton.jit
def _read(start, row, seen, stride, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Some rows of a matrix, `(rows, BLOCK)`: zeros beyond `DIM`, and where a row is not `seen`."""
    at = tl.arange(0, BLOCK)
    where = start + (row.to(tl.int64) * stride)[:, None] + at[None, :]
    return tl.load(where, mask=seen[:, None] & (at < DIM)[None, :], other=0.0)


@triton.jit
def _step(query, key, value, seen, top, total, out, factor, cap, CAPPED: tl.constexpr):
    """One tile of keys joins the online softmax.

    `query` is `(BLOCK_M, head_dim)`, `key` `(BLOCK_N, head_dim)`, `value` `(BLOCK_N, value_dim)`, `seen`
    `(BLOCK_M, BLOCK_N)`; `top` is each row's largest score in powers of 2, `total` and `out` are relative to it.
    """
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * factor
    if CAPPED:
        score = _tanh(score) * cap
    score = tl.where(seen, score, -float("inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen so far: no -inf - -inf
    weight = tl.exp2(score - base[:, None])
    fade = tl.exp2(top - base)
    out = tl.dot(weight.to(value.dtype), value, out * fade[:, None], input_precision="ieee")
    return higher, total * fade + tl.sum(weight, 1), out


@triton.jit(
    do_not_specialize=(
        *("rows", "depths", "bits", "batch", "programs", "nodes_stride", "words", "window"),
        *("query_head", "query_row", "key_batch", "key_head", "key_row", "value_batch", "value_head", "value_row"),
    )
)
def attend(
    query,
    key,
    value,
    outs,
    tops,
    totals,
    rows,
    depths,
    bits,
    batch,
    programs,
    nodes_stride,
    words,
    window,
    query_head,
    query_row,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    factor,
    cap,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """One split: grid `(slots, kv_heads)`. Strides are in units of `UNIT` elements.

    Writes `outs` `(slots, kv_heads, BLOCK_M, VALUE_DIM)`, relative to `tops` and not divided by `totals`, both
    `(slots, kv_heads, BLOCK_M)`.
    """
    slot, kv_head = tl.program_id(0), tl.program_id(1)
    query_tiles, splits = _schedule(rows, batch, programs, window, GROUP, BATCH, BLOCK_M, BLOCK_N, WINDOWED)
    sequence, own = _place(query_tiles * splits, slot, BATCH)
    if sequence >= BATCH:
        return
    own_splits = tl.sum(tl.where(tl.arange(0, BATCH) == sequence, splits, 0), 0)
    split = own % own_splits
    prefix = tl.load(rows + sequence * 4)
    nodes = tl.load(rows + sequence * 4 + 1)
    first_query = tl.load(rows + sequence * 4 + 2)
    start = tl.load(rows + sequence * 4 + 3)

    m = tl.arange(0, BLOCK_M)
    row = own // own_splits * BLOCK_M + m
    index = row // GROUP
    live = index < nodes - first_query
    flat = (start + index).to(tl.int64)
    head = kv_head * GROUP + row % GROUP
    query += (head.to(tl.int64) * query_head * UNIT)[:, None]
    q = _read(query, flat, live, query_row * UNIT, HEAD_DIM, HEAD_BLOCK)
    key += (sequence.to(tl.int64) * key_batch + kv_head.to(tl.int64) * key_head) * UNIT
    value += (sequence.to(tl.int64) * value_batch + kv_head.to(tl.int64) * value_head) * UNIT
    depths += sequence.to(tl.int64) * nodes_stride
    position = prefix
    if WINDOWED:
        position += tl.load(depths + first_query + index, mask=live, other=0)

    first, middle, end = _tiles(prefix, nodes, window, BLOCK_N, WINDOWED)
    count = end - first
    last_query = first_query + tl.minimum((own // own_splits * BLOCK_M + BLOCK_M - 1) // GROUP, nodes - 1)
    begin = first + split * count // own_splits
    end = first + (split + 1) * count // own_splits
    end = tl.minimum(end, middle + last_query // BLOCK_N + 1)  # behind a query there are no ancestors

    n = tl.arange(0, BLOCK_N)
    top = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, VALUE_BLOCK], tl.float32)
    for tile in range(begin, tl.minimum(middle, end)):
        at = tile * BLOCK_N + n
        inside = at < prefix
        k = _read(key, at, inside, key_row * UNIT, HEAD_DIM, HEAD_BLOCK)
        v = _read(value, at, inside, value_row * UNIT, VALUE_DIM, VALUE_BLOCK)
        seen = inside[None, :]
        if WINDOWED:
            seen = seen & (position[:, None] - at[None, :] < window)
        top, total, out = _step(q, k, v, seen, top, total, out, factor, cap, CAPPED)
    for tile in range(tl.maximum(begin, middle), end):
        node = (tile - middle) * BLOCK_N + n
        inside = node < nodes
        k = _read(key, prefix + node, inside, key_row * UNIT, HEAD_DIM, HEAD_BLOCK)
        v = _read(value, prefix + node, inside, value_row * UNIT, VALUE_DIM, VALUE_BLOCK)
        word = (tile - middle) * (BLOCK_N // 32)
        ancestors = tl.load(bits + flat * words + word, mask=live, other=0)[:, None]
        if BLOCK_N == 64:
            high = tl.load(bits + flat * words + word + 1, mask=live & (word + 1 < words), other=0)
            ancestors = tl.where(n[None, :] < 32, ancestors, high[:, None])
        seen = ((ancestors >> (n % 32)[None, :]) & 1 != 0) & inside[None, :]
        if WINDOWED:
            depth = tl.load(depths + node, mask=inside, other=0)
            seen = seen & (position[:, None] - (prefix + depth)[None, :] < window)
        top, total, out = _step(q, k, v, seen, top, total, out, factor, cap, CAPPED)

    where = (slot.to(tl.int64) * tl.num_programs(1) + kv_head) * BLOCK_M + m
    tl.store(tops + where, top)
    tl.store(totals + where, total)
    d = tl.arange(0, VALUE_BLOCK)
    tl.store(outs + where[:, None] * VALUE_DIM + d[None, :], out, mask=(d < VALUE_DIM)[None, :])


@triton.jit(do_not_specialize=("rows", "batch", "programs", "window"))
def merge(
    result,
    outs,
    tops,
    totals,
    sinks,
    rows,
    batch,
    programs,
    window,
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOWED: tl.constexpr,
    MERGED: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Some rows of a tile of queries: grid `(tiles * BLOCK_M // MERGED, kv_heads)`.

    Writes `result`, `(queries, heads, VALUE_DIM)`; what stands in `outs`, `tops` and `totals`, `attend` says.
    """
    kv_head, kv_heads = tl.program_id(1), tl.num_programs(1)
    query_tiles, splits = _schedule(rows, batch, programs, window, GROUP, BATCH, BLOCK_M, BLOCK_N, WINDOWED)
    sequence, tile = _place(query_tiles, tl.program_id(0) // (BLOCK_M // MERGED), BATCH)
    if sequence >= BATCH:
        return
    b = tl.arange(0, BATCH)
    own_splits = tl.sum(tl.where(b == sequence, splits, 0), 0)
    first_slot = tl.sum(tl.where(b < sequence, query_tiles * splits, 0), 0) + tile * own_splits
    queries = tl.load(rows + sequence * 4 + 1) - tl.load(rows + sequence * 4 + 2)
    start = tl.load(rows + sequence * 4 + 3)

    m = tl.program_id(0) % (BLOCK_M // MERGED) * MERGED + tl.arange(0, MERGED)
    row = tile * BLOCK_M + m
    live = row // GROUP < queries
    head = kv_head * GROUP + row % GROUP
    d = tl.arange(0, VALUE_BLOCK)
    top = tl.full([MERGED], -float("inf"), tl.float32)
    total = tl.zeros([MERGED], tl.float32)
    if sinks is not None:
        top = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        total += 1.0
    out = tl.zeros([MERGED, VALUE_BLOCK], tl.float32)
    for begin in range(0, own_splits, SLOTS):
        slot = first_slot + begin + tl.arange(0, SLOTS)
        some = (slot < first_slot + own_splits)[:, None] & live[None, :]
        where = (slot.to(tl.int64) * kv_heads + kv_head)[:, None] * BLOCK_M + m[None, :]  # (SLOTS, MERGED)
        tops_here = tl.load(tops + where, mask=some, other=-float("inf"))
        totals_here = tl.load(totals + where, mask=some, other=0.0)
        outs_here = tl.load(
            outs + where[:, :, None] * VALUE_DIM + d[None, None, :],
            mask=some[:, :, None] & (d < VALUE_DIM)[None, None, :],
            other=0.0,
        )
        higher = tl.maximum(top, tl.max(tops_here, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp2(tops_here - base[None, :])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weight * totals_here, 0)
        out = out * fade[:, None] + tl.sum(weight[:, :, None] * outs_here, 0)
        top = higher
    where = (start + row // GROUP).to(tl.int64) * (kv_heads * GROUP) + head
    out = out / tl.where(live, total, 1.0)[:, None]
    mask = live[:, None] & (d < VALUE_DIM)[None, :]
    tl.store(result + where[:, None] * VALUE_DIM + d[None, :], out.to(result.dtype.element_ty), mask=mask)
