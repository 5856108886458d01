"""Tree attention in Triton: the work is divided evenly, by a schedule that every program works out on the device.

The rows of a key/value head are the queries of its `GROUP` heads: row `m` of a sequence is query `m // GROUP`, head
`m % GROUP` of them. They are cut into tiles of `ROWS`. The keys of a sequence are cut into tiles of `KEYS`, the prefix
and the tree apart, so that a tile is of one kind. All tiles of keys of all tiles of rows, of all sequences and heads,
stand one after another in a line, which is cut into pieces of one length, one for each program. There are as many
programs as the GPU holds at a time, so all begin at once and end at once. A program that has all keys of a tile of rows
writes its result; where a piece begins or ends among them, they are a share, and a second kernel merges the shares.
Where pieces begin follows from numbers of the layout that the host need not know: launches depend on shapes alone, so
they can be captured.

Keys and values are in pages of a power of two rows, and a table says which pages a sequence has. Tiles of the prefix
begin where pages do or between, so each is in one page, whose number is read while the tile before it is joined. A tile
of the tree may be in two.
"""

# The body of a kernel is in Triton's language, with types of its own.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from talon_kernels.occupancy import AMD, Multiprocessor, nvidia
from talon_kernels.paging import one_page_each, page_bits
from talon_kernels.tree_attention.cutting import Blocks, blocks, merged_rows, room_told, width

MOST_DIMS = 256
"""The largest size of a head that there is room for."""

KINDS = ("other", "hopper", "amd", "turing")
LOG2E = tl.constexpr(1.4426950408889634)
MERGING = {"num_warps": 4, "enable_fp_fusion": True}


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
def _work(
    layout, batch, window,
    GROUP: tl.constexpr, BATCH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """For each sequence its tiles of rows and its tiles of keys, both `(BATCH,)`."""
    sequence = tl.arange(0, BATCH)
    prefix = tl.load(layout + sequence * 4, mask=sequence < batch, other=0)
    nodes = tl.load(layout + sequence * 4 + 1, mask=sequence < batch, other=0)
    first_query = tl.load(layout + sequence * 4 + 2, mask=sequence < batch, other=0)
    first, _, end = _tiles(prefix, nodes, window, KEYS, WINDOWED)  # pyright: ignore[reportGeneralTypeIssues]
    return tl.cdiv((nodes - first_query) * GROUP, ROWS), end - first


@triton.jit
def _starts_at(program, total, programs):
    """Where the piece of a program begins in a line of `total` tiles; pieces differ by one tile at most."""
    share = total // programs
    return program * share + tl.minimum(program, total - share * programs)


@triton.jit
def _who_has(place, total, programs):
    """The program whose piece has a place of the line."""
    share = total // programs
    longer = (total - share * programs) * (share + 1)  # the end of the pieces that have one more
    behind = (place - longer) // tl.maximum(share, 1) + total - share * programs
    return tl.where(place < longer, place // (share + 1), behind)


@triton.jit
def _find(counts, item, BATCH: tl.constexpr):
    """Which sequence has the `item`-th of all `counts` things (`BATCH`: none), and which of its own things it is."""
    sequence = tl.sum((tl.cumsum(counts, 0) <= item).to(tl.int32), 0)
    return sequence, item - tl.sum(tl.where(tl.arange(0, BATCH) < sequence, counts, 0), 0)


@triton.jit
def _of(numbers, sequence, BATCH: tl.constexpr):
    """The number of a sequence."""
    return tl.sum(tl.where(tl.arange(0, BATCH) == sequence, numbers, 0), 0)


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
        *("depths", "bits", "layout", "table", "batch", "kv_heads", "window", "nodes_stride", "words"),
        *("table_stride", "page_bits", "query_head", "query_row"),
        *("key_page", "key_head", "key_row", "value_page", "value_head", "value_row"),
    ]
)
def attend(
    query, key, value, depths, bits, table, nodes_stride, words, table_stride, page_bits,
    query_head, query_row, key_page, key_head, key_row, value_page, value_head, value_row, factor, cap,
    sinks, result, outs, tops, totals, layout, batch, kv_heads, window,
    HEAD_DIM: tl.constexpr, HEAD_WIDTH: tl.constexpr, UNIT: tl.constexpr, CAPPED: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """A program's piece of the line; grid `(programs,)`. Strides of what it attends with are in units of `UNIT`.

    Row `r` of a sequence is row `r % 2**page_bits` of the page that the table has at `r >> page_bits`.

    Of the tiles of rows that a piece has, others may have keys of the first and of the last. What it finds for these it
    writes to `outs`, `(2 * programs, ROWS, VALUE_DIM)`: relative to `tops` and not yet divided by `totals`, both
    `(2 * programs, ROWS)`. What it begins with is at `2 * program`, what else there is behind that.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    tiles, counts = _work(layout, batch, window, GROUP, BATCH, ROWS, KEYS, WINDOWED)  # pyright: ignore[reportGeneralTypeIssues]
    line = tl.sum(tiles * counts, 0)  # of one head
    begins = _starts_at(program, line * kv_heads, programs)
    ends = _starts_at(program + 1, line * kv_heads, programs)
    at = begins
    while at < ends:
        kv_head = (at // line).to(tl.int64)
        sequence, own = _find(tiles * counts, at % line, BATCH)
        count = _of(counts, sequence, BATCH)
        first_row, skipped = own // count * ROWS, own % count
        taken = tl.minimum(count - skipped, ends - at)
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
        its_key, its_value = key + kv_head * key_head * UNIT, value + kv_head * value_head * UNIT
        its_pages = table + sequence.to(tl.int64) * table_stride
        its_depths = depths + sequence.to(tl.int64) * nodes_stride
        oldest = prefix - window + 1  # the first position that a row sees
        if WINDOWED:
            oldest += tl.load(its_depths + first_query + index, mask=live, other=0)

        first, middle, _ = _tiles(prefix, nodes, window, KEYS, WINDOWED)
        begin, end = first + skipped, first + skipped + taken
        last = tl.minimum(first_query + (first_row + ROWS - 1) // GROUP, nodes - 1)
        end = tl.minimum(end, middle + last // KEYS + 1)  # a node's ancestors stand before it

        n = tl.arange(0, KEYS)
        in_page = (1 << page_bits) - 1
        top = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        out = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
        # What is `seen` is said in terms of `n`, as loads run ahead and what they share with it is kept in registers.
        page = tl.load(its_pages + (begin * KEYS >> page_bits), mask=begin < middle, other=0).to(tl.int64)
        for tile in range(begin, tl.minimum(middle, end)):
            inside = tile * KEYS + n < prefix
            row = (tile * KEYS & in_page) + n
            k = _read(its_key + page * key_page * UNIT, row, inside, key_row, UNIT, HEAD_DIM, HEAD_WIDTH)
            v = _read(its_value + page * value_page * UNIT, row, inside, value_row, UNIT, VALUE_DIM, VALUE_WIDTH)
            following = tile + 1
            page = tl.load(its_pages + (following * KEYS >> page_bits), mask=following < middle, other=0).to(tl.int64)
            seen = (n < prefix - tile * KEYS)[None, :]
            if WINDOWED:
                seen = seen & (n[None, :] >= (oldest - tile * KEYS)[:, None])
            top, total, out = _join(q, k, v, seen, top, total, out, factor, cap, CAPPED)
        for tile in range(tl.maximum(begin, middle) - middle, end - middle):
            keys = tile * KEYS + n
            row = (prefix + keys) & in_page
            pages = tl.load(its_pages + (prefix + keys >> page_bits), mask=keys < nodes, other=0).to(tl.int64)[:, None]
            k = _read(its_key + pages * key_page * UNIT, row, keys < nodes, key_row, UNIT, HEAD_DIM, HEAD_WIDTH)
            v = _read(its_value + pages * value_page * UNIT, row, keys < nodes, value_row, UNIT, VALUE_DIM, VALUE_WIDTH)
            word = tile * KEYS // 32
            ancestors = tl.load(bits + place * words + word, mask=live, other=0)[:, None] >> tile * KEYS % 32
            if KEYS == 64:  # two words; where there is no second one, there are no nodes for it either
                second = tl.load(bits + place * words + tl.minimum(word + 1, words - 1), mask=live, other=0)
                ancestors = tl.where(n[None, :] < 32, ancestors, second[:, None])
            seen = ((ancestors >> (n % 32)[None, :]) & 1 == 1) & (n < nodes - tile * KEYS)[None, :]
            if WINDOWED:
                depth = tl.load(its_depths + keys, mask=keys < nodes, other=0)
                seen = seen & (depth[None, :] >= (oldest - prefix)[:, None])
            top, total, out = _join(q, k, v, seen, top, total, out, factor, cap, CAPPED)

        # Rows anew: told apart by a 0, as some thirty registers would keep the others through the loops.
        index = (first_row + m + tl.minimum(prefix, 0)) // GROUP
        head = kv_head * GROUP + (first_row + m + tl.minimum(prefix, 0)) % GROUP
        if taken == count:
            live = first_query + index < nodes
            _finish(top, total, out, sinks, result, start + index, head, live, kv_heads * GROUP, VALUE_DIM, VALUE_WIDTH)
        else:
            slot = 2 * program + (at > begins).to(tl.int32)
            where = slot.to(tl.int64) * ROWS + m
            column = tl.arange(0, VALUE_WIDTH)
            tl.store(tops + where, top)
            tl.store(totals + where, total)
            tl.store(outs + where[:, None] * VALUE_DIM + column[None, :], out, mask=(column < VALUE_DIM)[None, :])
        at += taken


@triton.jit(do_not_specialize=["layout", "batch", "kv_heads", "window", "programs"])
def merge(
    sinks, result, outs, tops, totals, layout, batch, kv_heads, window, programs,
    VALUE_DIM: tl.constexpr, VALUE_WIDTH: tl.constexpr, GROUP: tl.constexpr,
    BATCH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    SOME: tl.constexpr, SHARES: tl.constexpr, BY_CUT: tl.constexpr,
):  # fmt: skip
    """The shares of `SOME` rows of a tile, `SHARES` at a time; grid `(tiles * ROWS // SOME,)`.

    Tiles of rows are counted, or, where there may be more of them than programs, found `BY_CUT`: behind each program's
    piece there is a cut, and a tile that is cut several times is merged at the first one.
    """
    item = tl.program_id(0) // (ROWS // SOME)
    tiles, counts = _work(layout, batch, window, GROUP, BATCH, ROWS, KEYS, WINDOWED)  # pyright: ignore[reportGeneralTypeIssues]
    line, of_head = tl.sum(tiles * counts, 0), tl.sum(tiles, 0)
    if line == 0:
        return
    if BY_CUT:
        cut = _starts_at(item + 1, line * kv_heads, programs)
        if cut >= line * kv_heads:
            return
        kv_head = cut // line
        sequence, own = _find(tiles * counts, cut % line, BATCH)
        count = _of(counts, sequence, BATCH)
        tile, begins = own // count, cut - own % count
        if (begins == cut) | (begins < _starts_at(item, line * kv_heads, programs)):
            return
    else:
        kv_head = item // of_head
        if kv_head >= kv_heads:
            return
        sequence, tile = _find(tiles, item % of_head, BATCH)
        count = _of(counts, sequence, BATCH)
        before = tl.sum(tl.where(tl.arange(0, BATCH) < sequence, tiles * counts, 0), 0)
        begins = kv_head * line + before + tile * count
    first = _who_has(begins, line * kv_heads, programs)
    shares = _who_has(begins + count - 1, line * kv_heads, programs) - first + 1
    if shares == 1:
        return
    later = (begins > _starts_at(first, line * kv_heads, programs)).to(tl.int32)  # not what the first begins with
    queries = tl.load(layout + sequence * 4 + 1) - tl.load(layout + sequence * 4 + 2)
    start = tl.load(layout + sequence * 4 + 3)

    m = tl.program_id(0) % (ROWS // SOME) * SOME + tl.arange(0, SOME)
    index, head = (tile * ROWS + m) // GROUP, kv_head.to(tl.int64) * GROUP + (tile * ROWS + m) % GROUP
    live = index < queries
    column = tl.arange(0, VALUE_WIDTH)
    top = tl.full([SOME], -float("inf"), tl.float32)
    total = tl.zeros([SOME], tl.float32)
    out = tl.zeros([SOME, VALUE_WIDTH], tl.float32)
    for begin in range(0, shares, SHARES):
        share = begin + tl.arange(0, SHARES)
        slot = 2 * (first + share) + tl.where(share == 0, later, 0)
        where = slot.to(tl.int64)[:, None] * ROWS + m[None, :]
        inside = (share < shares)[:, None] & live[None, :]  # (SHARES, SOME)
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
    table: Tensor | None = None,
    programs: int | None = None,
) -> Tensor:
    """Shapes as in `tree_attention`, of one type; head dimensions up to 256.

    Nothing is read from the device, and what is launched depends on shapes alone. Behind the layout's queries there may
    be others, whose output is zero.

    Args:
        query: as there, and so are the others that nothing is said of.
        key: as there, or with a table pages of rows, shape `(pages, kv_heads, rows, head_dim)`.
        value: likewise, with its own head size.
        layout: who may attend to whom, on the device of the tensors.
        scale: as there.
        softcap: as there.
        window: as there.
        sinks: as there.
        table: the pages of each sequence, as in `DeviceBackend.attend_packed`; None if it has its rows in one piece.
        programs: among how many to divide the work; None is as many as the GPU holds at a time.

    Returns:
        Shape `(heads, queries, value_dim)`. In memory the heads stand last but one, as an output projection reads them.

    Raises:
        ValueError: if a head is too large, or a page has no power of two rows, or fewer than a tile of keys.
        TooLargeError: if the GPU has no room for a program with tiles of so many rows.
    """
    heads, queries, head_dim = query.shape
    _, kv_heads, rows, value_dim = value.shape
    batch = len(layout.sequences)
    if max(head_dim, value_dim) > MOST_DIMS:
        raise ValueError(f"triton's heads have up to {MOST_DIMS} dimensions, not {max(head_dim, value_dim)}")
    result = query.new_zeros((queries, heads, value_dim))
    if not result.numel() or not batch:
        return result.transpose(0, 1)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    group, gpu = heads // kv_heads, _gpu(query.device)
    cut = blocks(head_dim, value_dim, layout.most * group, query.dtype, gpu.kind)
    if table is None:
        table, in_bits = one_page_each(batch, query.device)
    else:
        in_bits = page_bits(rows, cut.keys)
    tiles = kv_heads * (triton.cdiv(queries * group, cut.rows) + batch)  # at most
    strides = (*query.stride()[:2], *key.stride()[:3], *value.stride()[:3])
    unit = gcd(16, head_dim, value_dim)
    if any(stride % unit for stride in strides):
        unit = 1
    factor, cap = (scale * LOG2E.value, 0.0) if softcap is None else (scale / softcap, softcap * LOG2E.value)
    steps = (layout.depths.stride(0), layout.bits.stride(0), table.stride(0))
    numbers = (*steps, in_bits, *(stride // unit for stride in strides), factor, cap)
    own = (query, key, value, layout.depths, layout.bits, table, *numbers)
    sizes = (layout.sequences, batch, kv_heads, 0 if window is None else window)
    constants = _constants(value_dim, group, batch, cut, window is not None)
    every = {**_own_constants(head_dim, unit, softcap is not None), **constants, **_options(cut, gpu.kind)}
    with torch.cuda.device_of(query), room_told(cut, max(head_dim, value_dim)):
        if programs is None:
            nothing = query.new_empty(0, dtype=torch.float32)
            shared = (sinks, result, nothing, nothing, nothing, *sizes)
            variant = (query.dtype, sinks is None, *every.values())
            programs = gpu.programs(variant, cut.warps, lambda: attend.warmup(*own, *shared, grid=(1,), **every))
        outs = query.new_empty((2 * programs, cut.rows, value_dim), dtype=torch.float32)
        tops, totals = query.new_empty((2, 2 * programs, cut.rows), dtype=torch.float32)
        shared = (sinks, result, outs, tops, totals, *sizes)
        attend[(programs,)](*own, *shared, **every)
        grid = (min(tiles, programs) * cut.rows // merged_rows(cut.rows),)
        merge[grid](*shared, programs, **constants, **_merged(cut, tiles > programs), **MERGING)
    return result.transpose(0, 1)


@attrs.frozen
class _Gpu:
    """What work is cut and divided by.

    Attributes:
        kind: as for `blocks`.
        multiprocessors: how many it has.
        processor: what each of them has; None where that is not known, as without a GPU: then it holds one program.
    """

    kind: str
    multiprocessors: int
    processor: Multiprocessor | None
    _held: dict[object, int] = attrs.field(factory=dict, init=False)

    def programs(self, variant: object, warps: int, compiled: Callable[[], Any]) -> int:
        """How many programs of a kernel it holds at a time, by the registers and shared memory that the kernel needs.

        Args:
            variant: of the kernel; it is asked for once.
            warps: of a program.
            compiled: makes the kernel, if it is not made yet.
        """
        if self.processor is None:
            return self.multiprocessors
        if variant not in self._held:
            kernel = compiled()
            kernel.run  # noqa: B018  # which loads it, whereupon its registers are known
            # what does not fit once raises when it is launched, and says why
            self._held[variant] = max(1, self.processor.holds(kernel.n_regs, kernel.metadata.shared, warps))
        return self.multiprocessors * self._held[variant]


@cache
def _gpu(device: torch.device) -> _Gpu:
    if device.type != "cuda":
        return _Gpu("other", 8, None)
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return _Gpu("amd", found.multi_processor_count, AMD.get(found.gcnArchName.split(":")[0]))
    processor = nvidia(found.max_threads_per_multi_processor, found.shared_memory_per_multiprocessor)
    kind = "turing" if (found.major, found.minor) == (7, 5) else "hopper" if found.major == 9 else "other"
    return _Gpu(kind, found.multi_processor_count, processor)


def _own_constants(head_dim: int, unit: int, capped: bool) -> dict[str, Any]:
    """Those of `attend` alone."""
    return {"HEAD_DIM": head_dim, "HEAD_WIDTH": width(head_dim), "UNIT": unit, "CAPPED": capped}


def _merged(cut: Blocks, by_cut: bool) -> dict[str, Any]:
    """Those of `merge` alone: of few rows it reads many shares at a time."""
    some = merged_rows(cut.rows)
    return {"SOME": some, "SHARES": 16 // some, "BY_CUT": by_cut}


def _constants(value_dim: int, group: int, batch: int, cut: Blocks, windowed: bool) -> dict[str, Any]:
    """Those of both kernels."""
    dims = {"VALUE_DIM": value_dim, "VALUE_WIDTH": width(value_dim), "GROUP": group}
    return dims | {"BATCH": triton.next_power_of_2(batch), "ROWS": cut.rows, "KEYS": cut.keys, "WINDOWED": windowed}


def _options(cut: Blocks, kind: str) -> dict[str, Any]:
    # Without a limit, NVIDIA's assembler spills registers to make room for one more program.
    limit = {} if kind == "amd" else {"maxnreg": 255}
    return {"num_warps": cut.warps, "num_stages": cut.stages, "enable_fp_fusion": True, **limit}


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """What stands for all that is compiled: name, function, signature, constants and options of each."""
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    for kind, (name, dtype), dim in product(KINDS, dtypes.items(), (64, 80, 128, 192, 256)):
        if name == "fp16" and dim != 128:
            continue  # as bf16
        value_dim = 128 if dim == 192 else dim
        cuts = list(dict.fromkeys(blocks(dim, value_dim, rows, dtype, kind) for rows in (16, 32, 64, 128)))
        for cut in cuts:
            between = cut not in (cuts[0], cuts[-1]) or dim == 192
            hardest, marks = name == "bf16" and dim in (128, 256) and cut == cuts[-1], {"kind": kind}
            title = f"{name} {dim} rows={cut.rows}"
            ways = [("", 4, 8)]
            ways += [(" plain", 4, 1)] if dim == 128 else []
            ways += [(f" group={group}", group, 64) for group in (1, 7, 8) if dim == 128 and name == "bf16"]
            ways += [(" batch=256", 4, 256)] if dim == 128 and name == "bf16" and cut == cuts[-1] else []
            for way, group, batch in ways:
                own = marks | {"between": between or batch == 64, "hardest": hardest and not way}
                yield from _compiled(title + way, name, kind, own, cut, (dim, value_dim), group, batch)


def _compiled(
    title: str, name: str, kind: str, marks: dict[str, Any], cut: Blocks, dims: tuple[int, int], group: int, batch: int
) -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """Both kernels for one way to cut the work; with one sequence in the batch, plain ones."""
    dim, value_dim = dims
    plain = batch == 1
    types = dict.fromkeys(("query", "key", "value", "sinks", "result"), f"*{name}")
    types |= dict.fromkeys(("outs", "tops", "totals"), "*fp32") | {"factor": "fp32", "cap": "fp32"}
    types |= dict.fromkeys(("depths", "bits", "layout", "table"), "*i32")
    constants = _constants(value_dim, group, batch, cut, not plain) | ({"sinks": None} if plain else {})
    parts = [(attend, _own_constants(dim, gcd(16, dim, value_dim), not plain), _options(cut, kind))]
    if group == 4 and not marks["between"]:  # it knows no types of queries and no rows beside its own
        parts += [(merge, _merged(cut, not plain), MERGING)]
    for function, own, options in parts:
        known = constants | own
        signature = {n: "constexpr" if n in known else types.get(n, "i32") for n in function.arg_names}
        yield f"{function.__name__} {title}", function, signature, known, options | marks
