"""Suffix arrays over token ids, sorted as far as look-ups compare."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

COMPARED = 16
"""Tokens by which suffixes are sorted, and so the longest text that can be looked up."""

MOST = 2**31
"""Suffixes that one array may hold: ranks and positions share 64 bits."""


def suffix_array(tokens: NDArray[Any], length: int, highest: int) -> NDArray[np.uint32]:
    """Where suffixes begin, sorted by their first `COMPARED` tokens; those that are alike stand as in the text.

    By prefix doubling (Manber and Myers 1993): suffixes that are ranked by their first `w` tokens are ranked by `2 w`
    by sorting pairs of ranks. As many tokens as 64 bits hold are packed for the first ranks; four sorts of 64-bit
    numbers do for a vocabulary of up to 65,535 tokens. About 50 bytes a suffix are needed meanwhile.

    Args:
        tokens: token ids, shape `(length + following,)`, no negative ones; the following ones, of which `COMPARED` are
            read, begin no suffix and are what suffixes go on with.
        length: number of suffixes, at most `MOST`.
        highest: no token is above it; it stands for what comes after the last one.
    """
    bits = max(1, int(highest).bit_length())
    width = min(COMPARED, 64 // bits)
    size = length + COMPARED
    padded = np.full(size + width, highest, dtype=np.uint64)
    given = min(size, len(tokens))
    padded[:given] = tokens[:given]
    keys = np.zeros(size, dtype=np.uint64)  # at each position, the `width` tokens from there on
    for place in range(width):
        keys <<= np.uint64(bits)
        keys |= padded[place : place + size]
    del padded
    while width < COMPARED:
        order = keys.argsort()
        ranks = np.empty(size, dtype=np.uint64)
        ranks[order] = _ranked(keys[order])
        del order
        shift = min(width, COMPARED - width)
        keys = ranks << np.uint64(32)
        keys[: size - shift] |= ranks[shift:]
        width += shift
    keys = keys[:length]
    order = keys.argsort()
    ranked = _ranked(keys[order]) << np.uint64(32) | order.astype(np.uint64)
    ranked.sort()
    return ranked.astype(np.uint32)  # the lower half: the position


def _ranked(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """For sorted keys, how many smaller ones there are, equal ones counted once."""
    ranks = np.zeros(len(keys), dtype=np.uint64)
    np.cumsum(keys[1:] != keys[:-1], out=ranks[1:], dtype=np.uint64)
    return ranks
