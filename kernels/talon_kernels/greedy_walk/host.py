"""The greedy walk in C, straight from what a pass on a host has read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np
from torch import Tensor

from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.recording import Walk, Walks
from talon_core.tree import IntArray
from talon_kernels.native import Library


def native_walks(
    library: Library,
    inputs: PassInputs,
    best: Tensor,
    slots: Collection[int],
    ends: frozenset[int],
    unwalked: Mapping[int, int],
) -> Walks:
    """As `PassRecorder.greedy_walks`; all numbers for C stand in one piece of memory, because there are few."""
    trees, starts, queries = inputs.layout.parents, inputs.layout.starts.tolist(), len(inputs.ids)
    counts = [len(trees[slot]) - unwalked.get(slot, 0) for slot in slots]
    longest = max(counts)
    columns = [number for slot, count in zip(slots, counts, strict=True) for number in (0, count, 0, starts[slot])]
    firsts = 0, queries, 2 * queries, 2 * queries + len(columns)
    numbers = np.empty(firsts[3] + len(slots) * (2 + longest), dtype=np.int32)
    numbers[: firsts[1]] = inputs.ids
    numbers[firsts[1] : firsts[2]] = trees[0] if len(trees) == 1 else np.concatenate(trees)
    numbers[firsts[2] : firsts[3]] = columns
    at, last = numbers.ctypes.data, _numbers(ends)
    tokens, parents, sequences, out = (at + 4 * first for first in firsts)
    library.greedy_walk(
        best.data_ptr(), tokens, parents, sequences, len(slots), last.ctypes.data, len(last), longest, out
    )
    walks = numbers[firsts[3] :].reshape(len(slots), 2 + longest)
    return {
        slot: Walk(own[2 : 2 + own[0]].astype(np.int64), int(own[1])) for slot, own in zip(slots, walks, strict=True)
    }


@lru_cache(maxsize=64)
def _numbers(ends: frozenset[int]) -> IntArray:
    return np.array(sorted(ends), dtype=np.int64)
