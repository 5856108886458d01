"""Checksums of what is kept of a text: what was changed on the disk is not taken for what was recorded.

What is small, and looked at in full when a text is opened, has one checksum. What is large has one for each row, which
is compared for the rows that somebody has looked at. So nothing else is read from the disk.
"""

import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talon_core.trace.stored import Stored

CHANGED = "is not what was recorded; its file was changed: delete it and record what is missing"

SEED = 2601_07353
"""Of the factors; with another one, no checksum of an older file would be right."""


def sum_of(
    told: Mapping[str, Any], columns: Mapping[str, NDArray[Any] | Stored], read: Mapping[str, NDArray[Any]]
) -> int:
    """A CRC-32, which is read as fast as memory.

    Args:
        told: plain data.
        columns: all of a file; their names, types and shapes count.
        read: those whose numbers count, too.
    """
    kinds = {name: [column.dtype.str, *column.shape] for name, column in columns.items()}
    found = zlib.crc32(json.dumps([told, kinds], sort_keys=True).encode())
    for name in sorted(read):
        found = zlib.crc32(np.ascontiguousarray(read[name]).data, found)
    return found


def row_sums(*columns: NDArray[Any]) -> NDArray[np.int32]:
    """A checksum of each row, of all columns together.

    Each word of a row, of 32 bits or less, is multiplied by an odd factor that belongs to its place; the checksum is
    their sum modulo 2^32. So a word that is changed changes it, and several hardly ever leave it as it was.

    Args:
        columns: whole or fractional numbers, shape `(rows, width)` each.

    Returns:
        Shape `(rows,)`.
    """
    words = [_words(column) for column in columns]
    factors, place = _factors(sum(each.shape[1] for each in words)), 0
    found = np.zeros(len(words[0]), dtype=np.uint32)
    for each in words:
        found += np.einsum("rw,w->r", each, factors[place : place + each.shape[1]])
        place += each.shape[1]
    return found.view(np.int32)


def total_of(law: NDArray[np.float32]) -> float:
    """What a law sums to in double precision, one number after the other, so that it is the same on any machine."""
    return float(law.cumsum(dtype=np.float64)[-1])


def _words(column: NDArray[Any]) -> NDArray[np.uint32]:
    whole = np.ascontiguousarray(column)
    return whole.astype(np.uint32) if whole.dtype.itemsize == 2 else whole.view(np.uint32)


@lru_cache(maxsize=8)
def _factors(count: int) -> NDArray[np.uint32]:
    """Odd numbers, which are the same with any NumPy: a generator's own stream of bits is."""
    drawn: NDArray[np.uint64] = np.random.PCG64(SEED).random_raw(count)
    return (drawn >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
