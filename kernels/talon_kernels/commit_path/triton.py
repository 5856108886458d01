"""Moving accepted rows in one launch, in Triton."""

# The body of a kernel is in Triton's language, with types of its own.
# mypy: disable-error-code="untyped-decorator"
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from talon_kernels.commit_path.buffers import SLAB

WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}
TILE = {"ROWS": 16, "COLUMNS": SLAB}  # hardly a path is longer than 16
OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": True}


# Nothing is specialised: sizes, and where a tensor starts, vary from call to call, and each would be compiled anew.
@triton.jit(do_not_specialize=["slabs", "sequences", "walks", "walk_size"])
def _move(
    slabs: tl.tensor,
    sequences: tl.tensor,
    walks: tl.tensor,
    walk_size: tl.tensor,
    WORD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One slab of one sequence; grid `(slabs, batch)`.

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
    step = tl.load(slab + 2)
    width = tl.load(slab + 3)
    base = (
        tl.load(slab).to(tl.pointer_type(WORD))
        + sequence * tl.load(slab + 1)
        + tl.load(sequences + 4 * sequence) * step
    )

    column = tl.arange(0, COLUMNS)
    for first in range(0, length, ROWS):
        place = first + tl.arange(0, ROWS)
        node = tl.load(walk + 2 + place, mask=place < length, other=0)
        # What is in its place already stays, and other=0 is never greater.
        moves = (node > place)[:, None] & (column < width)[None, :]
        kept = tl.load(base + node[:, None] * step + column[None, :], mask=moves, other=0)
        tl.debug_barrier()
        tl.store(base + place[:, None] * step + column[None, :], kept, mask=moves)


def commit_path_triton(slabs: Tensor, word: int, sequences: Tensor, walks: Tensor) -> None:
    """Move rows; `slabs` and `word` as in `BufferTable`, the others as in `commit_path`."""
    grid = (slabs.shape[0], sequences.shape[0])
    if 0 not in grid:
        _move[grid](slabs, sequences, walks, walks.shape[1], WORD=WORDS[word], **TILE, **OPTIONS)


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """All that is ever compiled: the name, function, signature, constants and options of each."""
    signature = {"slabs": "*i64", "sequences": "*i32", "walks": "*i32", "walk_size": "i32"}
    for size, word in WORDS.items():
        constants = {"WORD": word, **TILE}
        yield f"commit_path_{8 * size}", _move, signature | dict.fromkeys(constants, "constexpr"), constants, OPTIONS
