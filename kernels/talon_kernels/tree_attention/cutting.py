"""How Triton's tree attention cuts its work, and among which programs that is divided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import torch

from talon_core.attention import TooLargeError


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
    """How to cut the work if the largest sequence has `rows` rows: no register spills, and shared memory suffices.

    A sequence whose rows are in one tile has its keys read once.

    Kinds of GPUs are "hopper", whose tensor cores read queries from shared memory; "amd", which has little of it, and
    most registers in programs of four warps; "turing", whose tensor cores need most registers; and "other".
    """
    exact, wide = dtype == torch.float32, max(head_dim, value_dim) > 128
    if kind == "turing":
        return Blocks(16, 16, 8 if wide else 4, 2)
    most = 128 >> 2 * exact + wide
    tile = max(16, min(width(rows), most if kind == "hopper" else most // 2))
    # with 64 keys triton 3.7.1 spills registers of small heads' largest tiles, and of larger heads' smallest ones
    small = head_dim <= 64
    few = wide or (kind == "other" and small and tile == 64) or (kind != "amd" and not small and tile == 16)
    keys = 16 if exact else 32 if few else 64
    warps = 8 if 2 * tile >= most and kind != "amd" else 4
    return Blocks(tile, keys, warps, 2 if kind == "amd" else 3)


def merged_rows(rows: int) -> int:
    """Rows that one program merges, of a tile of so many: up to 64 programs have a tile between them."""
    return max(1, rows // 64)


def width(dim: int) -> int:
    """The least block that holds `dim` numbers: a power of two, and 16 at least."""
    return max(16, 1 << (dim - 1).bit_length())


@attrs.frozen
class Segment:
    """What one program does for one tile of rows: attend from it to consecutive tiles of keys.

    Attributes:
        program: its number.
        kv_head: the key/value head.
        sequence: the sequence.
        tile: the tile of rows, of those of the sequence and the head.
        begin: the first tile of keys, of those that the sequence has.
        end: where they end.
        whole: whether these are all that the sequence has, so that there is nothing to merge.
    """

    program: int
    kv_head: int
    sequence: int
    tile: int
    begin: int
    end: int
    whole: bool


def starts_at(program: int, total: int, programs: int) -> int:
    """Where a program's share of the line begins; shares differ by one tile of keys at most."""
    share, more = divmod(total, programs)
    return program * share + min(program, more)


def segments(work: Sequence[tuple[int, int]], kv_heads: int, programs: int) -> Iterator[Segment]:
    """What each program does; `talon_kernels.tree_attention.triton.attend` finds the same on the device.

    Args:
        work: for each sequence its tiles of rows, and its tiles of keys.
        kv_heads: key/value heads.
        programs: among how many the work is divided.
    """
    line = [
        (kv_head, sequence, tile, keys)
        for kv_head in range(kv_heads)
        for sequence, (tiles, keys) in enumerate(work)
        for tile in range(tiles)
    ]
    total = sum(keys for *_, keys in line)
    program, at, left = 0, 0, starts_at(1, total, programs)
    for kv_head, sequence, tile, keys in line:
        begin = 0
        while begin < keys:
            while at == left:
                program += 1
                left = starts_at(program + 1, total, programs)
            end = min(keys, begin + left - at)
            yield Segment(program, kv_head, sequence, tile, begin, end, end - begin == keys)
            at, begin = at + end - begin, end


@contextmanager
def room_told(cut: Blocks, dim: int) -> Iterator[None]:
    """Of a kernel that is launched inside, and that a GPU has no room for, say what it was for and what helps.

    Args:
        cut: its tiles.
        dim: numbers of a head.

    Raises:
        TooLargeError: if Triton says so of a kernel.
    """
    from triton.runtime.errors import OutOfResources

    try:
        yield
    except OutOfResources as error:
        raise TooLargeError(
            f"triton's tree attention with tiles of {cut.rows} rows and heads of {dim} numbers needs {error.required} "
            f"of {error.name}, and this GPU has {error.limit}; take a policy with a smaller budget, or attention 'sdpa'"
        ) from error
