"""Moving accepted rows in one launch, in Triton."""

# The body of a kernel is in Triton's language, with types of its own.
# mypy: disable-error-code="untyped-decorator"
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor, cuda

from talon_kernels.commit_path.buffers import SLAB
from talon_kernels.paging import one_page_each

WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
TILE = {"ROWS": 16, "COLUMNS": SLAB}  # hardly a path is longer than 16
OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": True}


# Nothing is specialised: sizes, and where a tensor starts, vary from call to call, and each would be compiled anew.
@triton.jit(do_not_specialize=["slabs", "table", "sequences", "walks", "table_size", "page_bits", "walk_size"])
def _move(
    slabs: tl.tensor,
    table: tl.tensor,
    sequences: tl.tensor,
    walks: tl.tensor,
    table_size: tl.tensor,
    page_bits: tl.tensor,
    walk_size: tl.tensor,
    WORD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One slab of one sequence; grid `(slabs, batch)`.

    Row `r` of a sequence is row `r % 2**page_bits` of the page that the table has at `r >> page_bits`.

    A row may be read for one place and be another place itself, so the order matters:

    - Within a tile every load comes before every store: the barrier is between them. It is a barrier of one warp, for
      on AMD's GPUs a barrier of several does not wait for loads that are still on their way.
    - From tile to tile, stores to places `i` come before loads for places `i' > i` only. These loads are from rows
      `path[i'] >= i' > i`, which nothing was stored to.
    - Other programs have other columns, heads, sequences or buffers.
    """
    sequence = tl.program_id(1).to(tl.int64)
    slab = slabs + 4 * tl.program_id(0)
    walk = walks + sequence * walk_size
    length = tl.load(walk)
    base = tl.load(slab).to(tl.pointer_type(WORD))
    page_step, step, width = tl.load(slab + 1), tl.load(slab + 2), tl.load(slab + 3)
    pages = table + sequence * table_size
    prefix = tl.load(sequences + 4 * sequence)
    in_page = (1 << page_bits) - 1

    column = tl.arange(0, COLUMNS)
    for first in range(0, length, ROWS):
        place = first + tl.arange(0, ROWS)
        node = tl.load(walk + 2 + place, mask=place < length, other=0)
        # What is in its place already stays, and other=0 is never greater.
        moves = (node > place)[:, None] & (column < width)[None, :]
        source, target = prefix + node, prefix + place
        source_page = tl.load(pages + (source >> page_bits), mask=node > place, other=0).to(tl.int64)
        target_page = tl.load(pages + (target >> page_bits), mask=node > place, other=0).to(tl.int64)
        source_row = source_page * page_step + (source & in_page) * step
        target_row = target_page * page_step + (target & in_page) * step
        kept = tl.load(base + source_row[:, None] + column[None, :], mask=moves, other=0)
        tl.debug_barrier()
        tl.store(base + target_row[:, None] + column[None, :], kept, mask=moves)


def commit_path_triton(
    slabs: Tensor, word: int, sequences: Tensor, walks: Tensor, table: Tensor | None = None, bits: int = 0
) -> None:
    """Move rows; `slabs` and `word` as in `BufferTable`, the others as in `commit_path`, with `2**bits` rows a page."""
    grid = (slabs.shape[0], sequences.shape[0])
    if 0 not in grid:
        if table is None:
            table, bits = one_page_each(len(sequences), sequences.device)
        sizes = table.stride(0), bits, walks.shape[1]
        with cuda.device_of(slabs):  # type: ignore[no-untyped-call]  # torch has no types here
            _move[grid](slabs, table, sequences, walks, *sizes, WORD=WORDS[word], **TILE, **OPTIONS)


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """All that is ever compiled: the name, function, signature, constants and options of each."""
    signature = {"slabs": "*i64", **dict.fromkeys(("table", "sequences", "walks"), "*i32")}
    signature |= dict.fromkeys(("table_size", "page_bits", "walk_size"), "i32")
    for size, word in WORDS.items():
        constants = {"WORD": word, **TILE}
        yield f"commit_path_{8 * size}", _move, signature | dict.fromkeys(constants, "constexpr"), constants, OPTIONS
