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

SEED = 2601_07353
"""Of the factors; with another one, no checksum of an older file would be right."""

MOST = 2**18
"""Words that are multiplied at once: of rows of any width little memory is taken."""


def sum_of(told: Mapping[str, Any], columns: Mapping[str, NDArray[Any]], read: frozenset[str]) -> int:
    """A CRC-32, which is read as fast as memory.

    Args:
        told: plain data.
        columns: all arrays of a file; their names, types and shapes count.
        read: the names of those whose numbers count, too.
    """
    kinds = {name: [column.dtype.str, *column.shape] for name, column in columns.items()}
    found = zlib.crc32(json.dumps([told, kinds], sort_keys=True).encode())
    for name in sorted(read & {*columns}):
        found = zlib.crc32(np.ascontiguousarray(columns[name]).data, found)
    return found


def row_sums(*columns: NDArray[Any]) -> NDArray[np.int32]:
    """A checksum of each row, of all columns together.

    Each word of a row, of 32 bits or less, is multiplied by an odd factor of 64 bits that belongs to its place; kept is
    the upper half of their sum modulo 2^64.

    Args:
        columns: whole or fractional numbers, shape `(rows, width)` each.

    Returns:
        Shape `(rows,)`.
    """
    words = [_words(column) for column in columns]
    wide, rows = sum(each.shape[1] for each in words), len(words[0])
    factors, found = _factors(wide), np.zeros(rows, dtype=np.uint64)
    step = max(1, MOST // max(wide, 1))
    for first in range(0, rows, step):
        place = 0
        for each in words:
            part = each[first : first + step]
            found[first : first + step] += part.astype(np.uint64) @ factors[place : place + part.shape[1]]
            place += part.shape[1]
    return (found >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _words(column: NDArray[Any]) -> NDArray[Any]:
    whole = np.ascontiguousarray(column)
    return whole.view(np.uint16 if whole.dtype.itemsize == 2 else np.uint32)


@lru_cache(maxsize=8)
def _factors(count: int) -> NDArray[np.uint64]:
    """Odd numbers, which are the same with any NumPy: a generator's own stream of bits is."""
    drawn: NDArray[np.uint64] = np.random.PCG64(SEED).random_raw(count) | np.uint64(1)
    return drawn
