"""Which tokens of a growing text follow each other, and which of them something has followed twice."""

from array import array

import numpy as np
from numpy.typing import NDArray

from talon_core.target import Behind
from talon_core.tree import IntArray
from talon_core.tree_arrays import distinct, ints

BEYOND = 1 << 31
"""Ids of tokens are below it, and not below what it is with a minus."""


class Pairs:
    """The pairs of tokens that follow each other in a text. What is appended is looked at when somebody asks.

    Args:
        vocab_size: what stands behind other tokens is of no use, and they are never proposed.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._waiting = array("q")  # the last token that was looked at, and those behind it
        self._known, self._followed, self._twice = ints([]), ints([]), ints([])  # rising

    def append(self, tokens: IntArray) -> None:
        """The text goes on with these, shape `(new,)`, int64."""
        self._waiting.extend(tokens.tolist())

    def of_all(self) -> Behind:
        """Behind each token that another one has followed."""
        self._learn()
        return Behind(self._followed, ints([]))

    def of_repeated(self) -> Behind:
        """Behind each token that the same one has followed twice, and behind each pair."""
        self._learn()
        return Behind(self._twice, self._known)

    def _learn(self) -> None:
        text = np.array(self._waiting, dtype=np.int64)
        if len(text) < 2:
            return
        del self._waiting[:-1]
        first, second = text[:-1], text[1:]
        within = (second >= 0) & (second < self._vocab_size) & (first >= -BEYOND) & (first < BEYOND)
        new, counts = np.unique((first[within] << 32) + second[within], return_counts=True)
        twice = new[(counts > 1) | _among(new, self._known)]
        self._known = _with(self._known, new)
        self._followed = _with(self._followed, new >> 32)
        self._twice = _with(self._twice, twice >> 32)


def _among(numbers: IntArray, known: IntArray) -> NDArray[np.bool_]:
    """Which of some numbers are among others, which rise."""
    if not len(known):
        return np.zeros(len(numbers), dtype=bool)
    found: NDArray[np.bool_] = known.take(known.searchsorted(numbers), mode="clip") == numbers
    return found


def _with(known: IntArray, more: IntArray) -> IntArray:
    """Rising numbers with others; to sort all of them anew would take long."""
    more = distinct(more[~_among(more, known)])
    return np.insert(known, known.searchsorted(more), more) if len(more) else known
