"""Tree attention in Triton: the keys are divided by a schedule that every program works out on the device.

The rows of a key/value head are the queries of its `GROUP` heads: row `m` of a sequence is query `m // GROUP`, head
`m % GROUP` of them. They are cut into tiles of `ROWS`. The keys of a sequence are cut into tiles of `KEYS`, the prefix
and the tree apart, so that a tile is of one kind. A program attends from one tile of rows to consecutive tiles of keys.
If these are all that the sequence has, it writes the result; otherwise they are a share of them, and a second kernel
merges the shares. How many there are follows from numbers of the layout that the host need not know: launches depend on
shapes alone, so they can be captured.
"""

# The body of a kernel is in Triton's language, with types of its own.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import gcd
from typing import Any

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

from talon_core.attention import PackedLayout

MOST_DIMS = 256
"""The largest size of a head that there is room for."""

LOG2E = tl.constexpr(1.4426950408889634)
MERGED = {"SOME": 4, "SHARES": 8}
MERGING = {"num_warps": 4, "enable_fp_fusion": True}


@attrs.frozen
class Blocks:
    """How the work is cut.

    Attributes:
        rows: of a tile of queries.
        keys: of a tile of keys; 16, 32 or 64.
        warps: of a program.
        stages: tiles of keys on their way, and one.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def blocks(head_dim: int, value_dim: int, rows: int, dtype: torch.dtype, kind: str) -> Blocks:
    """How to cut the work if a sequence has about `rows` rows: no register spills, and shared memory suffices.

    Kinds of GPUs are "hopper", whose tensor cores read queries from shared memory; "amd", which has little of it, and
    most registers in programs of four warps; and "other".
    """
    exact, wide = dtype == torch.float32, max(head_dim, value_dim) > 128
    most = 128 >> 2 * exact + wide
    tile = max(16, min(_width(rows), most if kind == "hopper" else most // 2))
    keys = 16 if exact else 32 if wide else 64
    warps = 8 if 2 * tile >= most and kind != "amd" else 4
    return Blocks(tile, keys, warps, 2 if kind == "amd" else 3)


def _width(dim: int) -> int:
    """The least block that holds `dim` numbers: a power of two, and 16 at least."""
    return max(16, 1 << (dim - 1).bit_length())


@triton.jit
def _tanh(x):
    """To about a rounding step of the result, near 0 too."""
    square = tl.minimum(x * x, 1.0)  # further out the polynomial is not taken, and would overflow
    near = -5.70498872745e-3 * square + 2.06390887954e-2  # the polynomial of Cephes' tanhf
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    near = near * square * x + x
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(tl.abs(x), 10.0)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far))


INTERPRETED = tl.constexpr(not isinstance(_tanh, triton.JITFunction))


@triton.jit
def _dot(a, b, c):
    """`a @ b + c` in float32."""
    if INTERPRETED:  # which takes bfloat16 for integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, c, input_precision="ieee")


@triton.jit
def _tiles(prefix, nodes, window, KEYS: tl.constexpr, WINDOWED: tl.constexpr):
    """The tiles of keys of a sequence: the first that is seen, the end of the prefix's, the end of all."""
    first = prefix * 0
    if WINDOWED:  # no query stands before `prefix`
        first = tl.maximum(prefix - window + 1, 0) // KEYS
    middle = tl.cdiv(prefix, KEYS)
    return first, middle, middle + tl.cdiv(nodes, KEYS)


@triton.jit
def _schedule(
    layout, batch, programs, window,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """For each sequence its tiles of rows, and into how many shares its tiles of keys are divided, both `(BATCH,)`.

    A share is what there is to do over `programs`, rounded up. So all shares of all tiles of rows are no more than
    `programs` and one for each tile; those of sequences that have more than one share, no more than twice `programs`.
    """
    sequence = tl.arange(0, BATCH)
    prefix = tl.load(layout + sequence * 4, mask=sequence < batch, other=0)
    nodes = tl.load(layout + sequence * 4 + 1, mask=sequence < batch, other=0)
    first_query = tl.load(layout + sequence * 4 + 2, mask=sequence < batch, other=0)
    first, _, end = _tiles(prefix, nodes, window, KEYS, WINDOWED)
    tiles = tl.cdiv((nodes - first_query) * GROUP, ROWS)
    share = tl.maximum(tl.cdiv(tl.sum(tiles * (end - first), 0), programs), 1)
    return tiles, tl.cdiv(end - first, share)


@triton.jit
def _find(counts, item, BATCH: tl.constexpr):
    """Which sequence has the `item`-th of all `counts` things (`BATCH`: none), and which of its own things it is."""
    sequence = tl.sum((tl.cumsum(counts, 0) <= item).to(tl.int32), 0)
    return sequence, item - tl.sum(tl.where(tl.arange(0, BATCH) < sequence, counts, 0), 0)


@triton.jit
def _read(start, row, inside, stride, UNIT: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a matrix, `(rows, WIDTH)`: zeros beyond `DIM`, and where a row is not `inside`."""
    column = tl.arange(0, WIDTH)
    where = start + (row.to(tl.int64) * stride * UNIT)[:, None] + column[None, :]
    return tl.load(where, mask=inside[:, None] & (column < DIM)[None, :], other=0.0)


@triton.jit
def _join(query, key, value, seen, top, total, out, factor, cap, CAPPED: tl.constexpr):
    """One more tile of keys: `top` is a row's largest score so far, to base 2; `total` and `out` are relative to it.

    `query` is `(ROWS, head_dim)`, `key` `(KEYS, head_dim)`, `value` `(KEYS, value_dim)`, `seen` `(ROWS, KEYS)`.
    """
    score = _dot(query, tl.trans(key), None) * factor
    if CAPPED:
        score = _tanh(score) * cap
    score = tl.where(seen, score, -float("inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing was seen so far
    weight, fade = tl.exp2(score - base[:, None]), tl.exp2(top - base)
    out = _dot(weight.to(value.dtype), value, out * fade[:, None])
    return higher, total * fade + tl.sum(weight, 1), out


@triton.jit
def _finish(top, total, out, sinks, result, place, head, live, heads, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Divide, and write rows of `result`, `(queries, heads, DIM)`: row `m` is of query `place[m]` and of `head[m]`."""
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        higher = tl.maximum(top, sink)
        total = total * tl.exp2(top - higher) + tl.exp2(sink - higher)
        out = out * tl.exp2(top - higher)[:, None]
    out = out / tl.where(live, total, 1.0)[:, None]
    column = tl.arange(0, WIDTH)
    where = (place.to(tl.int64) * heads + head)[:, None] * DIM + column[None, :]
    tl.store(result + where, out.to(result.dtype.element_ty), mask=live[:, None] & (column < DIM)[None, :])


# What varies from call to call is not specialised: it would be compiled anew.
@triton.jit(
    do_not_specialize=[
        *("depths", "bits", "layout", "batch", "programs", "window", "nodes_stride", "words"),
        *("query_head", "query_row", "key_batch", "key_head", "key_row", "value_batch", "value_head", "value_row"),
    ]
)
def attend(
    query, key, value, depths, bits, nodes_stride, words,
    query_head, query_row, key_batch, key_head, key_row, value_batch, value_head, value_row, factor, cap,
    sinks, result, outs, tops, totals, layout, batch, programs, window,
    HEAD_DIM: tl.constexpr, HEAD_WIDTH: tl.constexpr, UNIT: tl.constexpr, CAPPED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """A share of the keys for a tile of rows; grid `(shares, kv_heads)`. Strides are in units of `UNIT` numbers.

    If a sequence has several shares, writes `outs`, `(shares, kv_heads, ROWS, VALUE_DIM)`: relative to `tops` and not
    yet divided by `totals`, both `(shares, kv_heads, ROWS)`.
    """
    kv_head, kv_heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    tiles, shares = _schedule(layout, batch, programs, window, GROUP, BATCH, ROWS, KEYS, WINDOWED)
    sequence, own = _find(tiles * shares, tl.program_id(0), BATCH)
    if sequence >= BATCH:
        return
    others = tl.arange(0, BATCH)
    own_shares = tl.sum(tl.where(others == sequence, shares, 0), 0)
    slot = own + tl.sum(tl.where((others < sequence) & (shares > 1), tiles * shares, 0), 0)
    first_row = own // own_shares * ROWS
    prefix = tl.load(layout + sequence * 4)
    nodes = tl.load(layout + sequence * 4 + 1)
    first_query = tl.load(layout + sequence * 4 + 2)
    start = tl.load(layout + sequence * 4 + 3)

    m = tl.arange(0, ROWS)
    index = (first_row + m) // GROUP
    live = first_query + index < nodes
    place = (start + index).to(tl.int64)
    head = kv_head * GROUP + (first_row + m) % GROUP
    q = _read(query + (head * query_head * UNIT)[:, None], place, live, query_row, UNIT, HEAD_DIM, HEAD_WIDTH)
    key += (sequence.to(tl.int64) * key_batch + kv_head * key_head) * UNIT
    value += (sequence.to(tl.int64) * value_batch + kv_head * value_head) * UNIT
    depths += sequence.to(tl.int64) * nodes_stride
    oldest = prefix - window + 1  # the first position that a row sees
    if WINDOWED:
        oldest += tl.load(depths + first_query + index, mask=live, other=0)

    first, middle, end = _tiles(prefix, nodes, window, KEYS, WINDOWED)
    count, share = end - first, own % own_shares
    begin = first + share * count // own_shares
    end = first + (share + 1) * count // own_shares
    last = tl.minimum(first_query + (first_row + ROWS - 1) // GROUP, nodes - 1)
    end = tl.minimum(end, middle + last // KEYS + 1)  # a node's ancestors stand before it

    n = tl.arange(0, KEYS)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    # What is `seen` is said in terms of `n`, as loads run ahead and what they share with it is kept in registers.
    for tile in range(begin, tl.minimum(middle, end)):
        at = tile * KEYS + n
        k = _read(key, at, at < prefix, key_row, UNIT, HEAD_DIM, HEAD_WIDTH)
        v = _read(value, at, at < prefix, value_row, UNIT, VALUE_DIM, VALUE_WIDTH)
        seen = (n < prefix - tile * KEYS)[None, :]
        if WINDOWED:
            seen = seen & (n[None, :] >= (oldest - tile * KEYS)[:, None])
        top, total, out = _join(q, k, v, seen, top, total, out, factor, cap, CAPPED)
    for tile in range(tl.maximum(begin, middle) - middle, end - middle):
        at = tile * KEYS + n
        k = _read(key, prefix + at, at < nodes, key_row, UNIT, HEAD_DIM, HEAD_WIDTH)
        v = _read(value, prefix + at, at < nodes, value_row, UNIT, VALUE_DIM, VALUE_WIDTH)
        word = tile * KEYS // 32
        ancestors = tl.load(bits + place * words + word, mask=live, other=0)[:, None] >> tile * KEYS % 32
        if KEYS == 64:  # two words; where there is no second one, there are no nodes for it either
            second = tl.load(bits + place * words + tl.minimum(word + 1, words - 1), mask=live, other=0)
            ancestors = tl.where(n[None, :] < 32, ancestors, second[:, None])
        seen = ((ancestors >> (n % 32)[None, :]) & 1 == 1) & (n < nodes - tile * KEYS)[None, :]
        if WINDOWED:
            depth = tl.load(depths + at, mask=at < nodes, other=0)
            seen = seen & (depth[None, :] >= (oldest - prefix)[:, None])
        top, total, out = _join(q, k, v, seen, top, total, out, factor, cap, CAPPED)

    # Rows anew: told apart by a 0, as some thirty registers would keep the others through the loops.
    index = (first_row + m + tl.minimum(prefix, 0)) // GROUP
    head = kv_head * GROUP + (first_row + m + tl.minimum(prefix, 0)) % GROUP
    if own_shares == 1:
        live = first_query + index < nodes
        _finish(top, total, out, sinks, result, start + index, head, live, kv_heads * GROUP, VALUE_DIM, VALUE_WIDTH)
    else:
        where = (slot.to(tl.int64) * kv_heads + kv_head) * ROWS + m
        column = tl.arange(0, VALUE_WIDTH)
        tl.store(tops + where, top)
        tl.store(totals + where, total)
        tl.store(outs + where[:, None] * VALUE_DIM + column[None, :], out, mask=(column < VALUE_DIM)[None, :])


@triton.jit(do_not_specialize=["layout", "batch", "programs", "window"])
def merge(
    sinks, result, outs, tops, totals, layout, batch, programs, window,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    SOME: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """The shares of `SOME` rows of a tile, `SHARES` at a time; grid `(tiles * ROWS // SOME, kv_heads)`."""
    kv_head, kv_heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    tiles, shares = _schedule(layout, batch, programs, window, GROUP, BATCH, ROWS, KEYS, WINDOWED)
    tiles = tl.where(shares > 1, tiles, 0)
    sequence, tile = _find(tiles, tl.program_id(0) // (ROWS // SOME), BATCH)
    if sequence >= BATCH:
        return
    others = tl.arange(0, BATCH)
    own_shares = tl.sum(tl.where(others == sequence, shares, 0), 0)
    slot = tl.sum(tl.where(others < sequence, tiles * shares, 0), 0) + tile * own_shares
    queries = tl.load(layout + sequence * 4 + 1) - tl.load(layout + sequence * 4 + 2)
    start = tl.load(layout + sequence * 4 + 3)

    m = tl.program_id(0) % (ROWS // SOME) * SOME + tl.arange(0, SOME)
    index, head = (tile * ROWS + m) // GROUP, kv_head * GROUP + (tile * ROWS + m) % GROUP
    live = index < queries
    column = tl.arange(0, VALUE_WIDTH)
    top = tl.full([SOME], -float("inf"), tl.float32)
    total = tl.zeros([SOME], tl.float32)
    out = tl.zeros([SOME, VALUE_WIDTH], tl.float32)
    for begin in range(0, own_shares, SHARES):
        share = begin + tl.arange(0, SHARES)
        where = ((slot + share).to(tl.int64) * kv_heads + kv_head)[:, None] * ROWS + m[None, :]
        inside = (share < own_shares)[:, None] & live[None, :]  # (SHARES, SOME)
        its_top = tl.load(tops + where, mask=inside, other=-float("inf"))
        its_total = tl.load(totals + where, mask=inside, other=0.0)
        inside = inside[:, :, None] & (column < VALUE_DIM)[None, None, :]
        its_out = tl.load(outs + where[:, :, None] * VALUE_DIM + column[None, None, :], mask=inside, other=0.0)
        higher = tl.maximum(top, tl.max(its_top, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)
        weight, fade = tl.exp2(its_top - base[None, :]), tl.exp2(top - base)
        total = total * fade + tl.sum(weight * its_total, 0)
        out = out * fade[:, None] + tl.sum(weight[:, :, None] * its_out, 0)
        top = higher
    _finish(top, total, out, sinks, result, start + index, head, live, kv_heads * GROUP, VALUE_DIM, VALUE_WIDTH)


def tree_attention_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    programs: int | None = None,
) -> Tensor:
    """Shapes as in `tree_attention`, of one type; head dimensions up to 256.

    Nothing is read from the device, and what is launched depends on shapes alone. Behind the layout's queries there may
    be others, whose output is zero.

    Args:
        query: as there, and so are the others that nothing is said of.
        key: as there.
        value: as there.
        layout: who may attend to whom, on the device of the tensors.
        scale: as there.
        softcap: as there.
        window: as there.
        sinks: as there.
        programs: among how many to divide the work; None is two for each multiprocessor.

    Returns:
        Shape `(heads, queries, value_dim)`. In memory the heads stand last but one, as an output projection reads them.
    """
    heads, queries, head_dim = query.shape
    batch, kv_heads, _, value_dim = value.shape
    if max(head_dim, value_dim) > MOST_DIMS:
        raise ValueError(f"triton's heads have up to {MOST_DIMS} dimensions, not {max(head_dim, value_dim)}")
    result = query.new_zeros((queries, heads, value_dim))
    if not result.numel() or not batch:
        return result.transpose(0, 1)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    group, (multiprocessors, kind) = heads // kv_heads, _device(query.device)
    cut = blocks(head_dim, value_dim, triton.cdiv(queries, batch) * group, query.dtype, kind)
    tiles = triton.cdiv(queries * group, cut.rows) + batch  # at most
    programs = max(1, (programs or 2 * multiprocessors) // kv_heads)
    outs = query.new_empty((2 * programs, kv_heads, cut.rows, value_dim), dtype=torch.float32)
    tops, totals = query.new_empty((2, 2 * programs, kv_heads, cut.rows), dtype=torch.float32)
    strides = (*query.stride()[:2], *key.stride()[:3], *value.stride()[:3])
    unit = gcd(16, head_dim, value_dim)
    if any(stride % unit for stride in strides):
        unit = 1
    factor, cap = (scale * LOG2E.value, 0.0) if softcap is None else (scale / softcap, softcap * LOG2E.value)
    numbers = (layout.depths.stride(0), layout.bits.stride(0), *(stride // unit for stride in strides), factor, cap)
    own = (query, key, value, layout.depths, layout.bits, *numbers)
    shared = (sinks, result, outs, tops, totals, layout.sequences, batch, programs, 0 if window is None else window)
    constants = _constants(value_dim, group, batch, cut, window is not None)
    own_constants = _own_constants(head_dim, unit, softcap is not None)
    with torch.cuda.device_of(query):
        attend[programs + tiles, kv_heads](*own, *shared, **own_constants, **constants, **_options(cut, kind))
        merge[min(tiles, programs) * cut.rows // MERGED["SOME"], kv_heads](*shared, **constants, **MERGED, **MERGING)
    return result.transpose(0, 1)


@cache
def _device(device: torch.device) -> tuple[int, str]:
    """How many multiprocessors it has, and of which kind it is; without a GPU, something to test with."""
    if device.type != "cuda":
        return 4, "other"
    properties = torch.cuda.get_device_properties(device)
    kind = "amd" if torch.version.hip else "hopper" if properties.major in (9, 10) else "other"
    return properties.multi_processor_count, kind


def _own_constants(head_dim: int, unit: int, capped: bool) -> dict[str, Any]:
    """Those of `attend` alone."""
    return {"HEAD_DIM": head_dim, "HEAD_WIDTH": _width(head_dim), "UNIT": unit, "CAPPED": capped}


def _constants(value_dim: int, group: int, batch: int, cut: Blocks, windowed: bool) -> dict[str, Any]:
    """Those of both kernels."""
    dims = {"VALUE_DIM": value_dim, "VALUE_WIDTH": _width(value_dim), "GROUP": group}
    return dims | {"BATCH": triton.next_power_of_2(batch), "ROWS": cut.rows, "KEYS": cut.keys, "WINDOWED": windowed}


def _options(cut: Blocks, kind: str) -> dict[str, Any]:
    # Without a limit, NVIDIA's assembler spills registers to make room for one more program.
    limit = {} if kind == "amd" else {"maxnreg": 255}
    return {"num_warps": cut.warps, "num_stages": cut.stages, "enable_fp_fusion": True, **limit}


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """What stands for all that is compiled: name, function, signature, constants and options of each."""
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    targets = {"other": "cuda:80", "hopper": "cuda:90", "amd": "hip:gfx942"}
    for (kind, target), (name, dtype), dim in product(targets.items(), dtypes.items(), (64, 80, 128, 256)):
        if name == "fp16" and dim != 128:
            continue  # as bf16
        types = dict.fromkeys(("query", "key", "value", "sinks", "result"), f"*{name}")
        types |= dict.fromkeys(("outs", "tops", "totals"), "*fp32") | {"factor": "fp32", "cap": "fp32"}
        types |= dict.fromkeys(("depths", "bits", "layout"), "*i32")
        cuts = list(dict.fromkeys(blocks(dim, dim, rows, dtype, kind) for rows in (16, 32, 64, 128)))
        for cut, plain in product(cuts, (False, True) if dim == 128 else (False,)):
            constants = _constants(dim, 4, 1 if plain else 8, cut, not plain) | ({"sinks": None} if plain else {})
            parts = [(attend, _own_constants(dim, gcd(16, dim), not plain), _options(cut, kind))]
            parts += [(merge, MERGED, MERGING)] if cut.rows == 16 else []
            for function, own, options in parts:
                known = constants | own
                signature = {n: "constexpr" if n in known else types.get(n, "i32") for n in function.arg_names}
                title = f"{function.__name__} {name} {dim} rows={cut.rows}{' plain' if plain else ''}"
                marks = {"target": target, "between": cut not in (cuts[0], cuts[-1])}
                yield title, function, signature, known, options | marks
