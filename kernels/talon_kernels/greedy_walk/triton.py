"""The greedy walk in one launch, in Triton."""

# The body of a kernel is in Triton's language, with types of its own.
# mypy: disable-error-code="untyped-decorator"
# pyright: reportArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor, cuda

TILE = {"BLOCK": 128}  # most trees are smaller
OPTIONS = {
    "num_warps": 1,
    "num_stages": 1,
    "enable_fp_fusion": True,
}  # one warp finds the lowest child without shared memory or barriers


# Not `tl.min`: the interpreter could not call it if triton had been imported before TRITON_INTERPRET was set.
@triton.jit
def _lower(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    return tl.minimum(one, other)


# Nothing is specialised: sizes, and where a tensor starts, vary from call to call and would compile it anew.
@triton.jit(
    do_not_specialize=["best", "tokens", "parents", "sequences", "ends", "walks", "num_ends", "longest"],
)
def _walk(
    best: tl.tensor,
    tokens: tl.tensor,
    parents: tl.tensor,
    sequences: tl.tensor,
    ends: tl.tensor,
    walks: tl.tensor,
    num_ends: tl.tensor,
    longest: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One sequence; grid `(batch,)`. Parents stand before their children, so one look at each block of nodes is enough:
    what follows the last node of the path is in the same block or a later one."""
    sequence = tl.program_id(0).to(tl.int64)
    nodes = tl.load(sequences + 4 * sequence + 1)
    start = tl.load(sequences + 4 * sequence + 3).to(tl.int64)
    best += start
    tokens += start
    parents += start
    walk = walks + sequence * (2 + longest)

    last = 0
    length = tl.minimum(nodes, 1)  # the root, where there is one
    tl.store(walk + 2, 0, mask=nodes > 0)
    for first in range(0, nodes, BLOCK):
        node = first + tl.arange(0, BLOCK)
        parent = tl.load(parents + node, mask=node < nodes, other=-1)
        token = tl.load(tokens + node, mask=node < nodes, other=-1)
        wanted = tl.load(best + parent, mask=parent >= 0, other=-1)
        follows = (parent >= 0) & (token == wanted)
        for end in range(num_ends):
            follows = follows & (wanted != tl.load(ends + end))

        child = tl.reduce(tl.where(follows & (parent == last), node, nodes), 0, _lower)
        while (child < nodes) & (length < longest):
            tl.store(walk + 2 + length, child)
            length += 1
            last = child
            child = tl.reduce(tl.where(follows & (parent == last), node, nodes), 0, _lower)

    tl.store(walk, length)
    tl.store(walk + 1, tl.load(best + last, mask=nodes > 0, other=-1).to(tl.int32))
    for first in range(0, longest, BLOCK):
        place = first + tl.arange(0, BLOCK)
        tl.store(walk + 2 + place, -1, mask=(place >= length) & (place < longest))


def greedy_walk_triton(
    best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
) -> Tensor:
    """Shapes as in `greedy_walk`."""
    walks = sequences.new_empty((sequences.shape[0], 2 + longest))
    if sequences.shape[0]:
        grid = (sequences.shape[0],)
        with cuda.device_of(best):  # type: ignore[no-untyped-call]  # torch has no types here
            _walk[grid](best, tokens, parents, sequences, ends, walks, ends.shape[0], longest, **TILE, **OPTIONS)
    return walks


def variants() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """All that is ever compiled: name, function, signature, constants and options of each."""
    for best in ("i32", "i64"):
        for ends in ("i32", "i64"):
            signature = {
                "best": f"*{best}",
                "tokens": "*i32",
                "parents": "*i32",
                "sequences": "*i32",
                "ends": f"*{ends}",
            }
            signature |= {"walks": "*i32", "num_ends": "i32", "longest": "i32"} | dict.fromkeys(TILE, "constexpr")
            yield f"greedy_walk_{best}_{ends}", _walk, signature, TILE, OPTIONS
