"""How evenly tree attention occupies a GPU that is not here, by a model: waves of programs on multiprocessors."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import attrs
import torch

from talon_kernels.tree_attention.cutting import Blocks, blocks, merged_rows, segments

HEADS = ((32, 1), (8, 4), (4, 7), (8, 8))
"""Key/value heads and the heads of each: those of Llama 2 and 3, Qwen 2.5, and Llama 3 of 70 billion parameters."""

DIMS = ((128, 128), (64, 64), (256, 256), (192, 128))
"""Numbers of a head's keys and of its values. But for the first, only the largest batches of them are looked at."""

CONTEXTS, NODES, BATCHES = (2048, 8192, 32768), (1, 16, 64, 256), (1, 3, 8, 64)
"""Of the largest trees, the largest batches are not looked at."""


@attrs.frozen
class Waves:
    """What the two launches of one layer take.

    The unit is the time in which a multiprocessor attends from a tile of rows to a tile of keys. What is read and
    written besides the keys is not counted while they are read; merging is, by the bytes that it reads.

    Attributes:
        took: until the last program has ended.
        ideal: as soon as that can be if keys are divided in whole tiles, and no program that merges is divided.
    """

    took: float
    ideal: float


@attrs.frozen
class Occupied:
    """How evenly a GPU is occupied where it is least so.

    Attributes:
        target: the kind of GPU.
        multiprocessors: how many it has.
        case: what it has to do.
        of_ideal: how much longer than ideal that takes.
    """

    target: str
    multiprocessors: int
    case: str
    of_ideal: float


def least_even(multiprocessors: int, kind: str, held: Mapping[str, int]) -> Occupied | None:
    """The case that takes longest relative to its ideal.

    Args:
        multiprocessors: of the GPU.
        kind: as for `blocks`.
        held: programs of `attend` that a multiprocessor holds at a time, by variant: those in bfloat16 are looked at.

    Returns:
        None if no variant is among them.
    """
    found = []
    for dims, (kv_heads, group), nodes, (what, sequences) in product(DIMS, HEADS, NODES, _batches()):
        largest = len(sequences) == BATCHES[-1]
        if (dims != DIMS[0] and not largest) or (nodes == NODES[-1] and largest):
            continue
        cut = blocks(*dims, nodes * group, torch.bfloat16, kind)
        programs = multiprocessors * _held(held, f"attend bf16 {dims[0]} rows={cut.rows}", group, len(sequences))
        if programs:
            trees = [(length, nodes) for length in sequences]
            took = waves(multiprocessors, programs, cut, trees, kv_heads, group, dims)
            case = f"{kv_heads} x {group} heads of {dims[0]}, {nodes} nodes, {what}"
            found.append(Occupied("", multiprocessors, case, took.took / took.ideal))
    return max(found, key=lambda one: one.of_ideal, default=None)


def _held(held: Mapping[str, int], variant: str, group: int, batch: int) -> int:
    """Of the variant that is compiled for this group and batch, or else of that for groups of 4 and batches of 8."""
    own = f" group={group}" if group != 4 else " plain" if batch == 1 else ""
    return held.get(variant + own, held.get(variant, 0))


def _batches() -> Iterator[tuple[str, list[int]]]:
    """Batches of texts of one length, and of one long text among shorter ones, with what to call them."""
    for batch, length in product(BATCHES, CONTEXTS):
        yield f"{batch} of {length} tokens", [length] * batch
        if batch > 1:
            short = [300 + 37 * row for row in range(batch)]
            yield f"one of {length} tokens among {batch}", [*short[1:], length]


def waves(
    multiprocessors: int,
    programs: int,
    cut: Blocks,
    sequences: Sequence[tuple[int, int]],
    kv_heads: int,
    group: int,
    dims: tuple[int, int] = (128, 128),
) -> Waves:
    """Both launches, one after the other.

    A multiprocessor divides its speed among the programs that it has. A program goes to the one that is done first with
    what it has been given.

    Args:
        multiprocessors: of the GPU.
        programs: among how many the work is divided.
        cut: how the work is cut.
        sequences: prefix and nodes of each; every node is a query, and there is no sliding window.
        kv_heads: key/value heads.
        group: heads of each of them.
        dims: numbers of a head's keys and of its values, in bfloat16.
    """
    work = [
        (_tiles(nodes * group, cut.rows), _tiles(prefix, cut.keys) + _tiles(nodes, cut.keys))
        for prefix, nodes in sequences
    ]
    attending = [0.0] * programs
    shares: Counter[tuple[int, int, int]] = Counter()
    for one in segments(work, kv_heads, programs):
        attending[one.program] += one.end - one.begin
        if not one.whole:
            shares[one.kv_head, one.sequence, one.tile] += 1
    some = merged_rows(cut.rows)
    row = 4 * dims[1] / (2 * sum(dims) * cut.keys)  # of a share, in float32
    merging = [count * some * row for count in shares.values() for _ in range(cut.rows // some)]
    took = _longest(attending, multiprocessors) + _longest(merging, multiprocessors)
    ideal = float(_tiles(int(sum(attending)), multiprocessors))
    if merging:
        ideal += max(sum(merging) / multiprocessors, max(merging), min(merging) * _tiles(len(merging), multiprocessors))
    return Waves(took, ideal)


def _longest(costs: Sequence[float], multiprocessors: int) -> float:
    """When the last program ends."""
    done = [0.0] * multiprocessors
    for cost in costs:
        heapq.heapreplace(done, done[0] + cost)
    return max(done)


def _tiles(count: int, size: int) -> int:
    return -(-count // size)
