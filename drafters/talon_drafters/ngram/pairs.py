"""Which tokens of a growing text follow each other, and which of them something has followed twice."""

import numpy as np

from talon_core.target import Behind
from talon_core.tree import IntArray
from talon_core.tree_arrays import ints


class Pairs:
    """The pairs of tokens that follow each other in a text. What is appended is looked at when somebody asks.

    Args:
        vocab_size: a pair with a token outside the vocabulary is left out.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._waiting: list[IntArray] = [ints([])]  # the last token that was looked at, and those behind it
        self._known = ints([])
        self._twice = ints([])

    def append(self, tokens: IntArray) -> None:
        """The text goes on with these, shape `(new,)`, int64."""
        self._waiting.append(tokens)

    def of_all(self) -> Behind:
        """Behind each token that another one has followed."""
        self._learn()
        return Behind(np.unique(self._known >> 32), ints([]))

    def of_repeated(self) -> Behind:
        """Behind each token that the same one has followed twice, and behind each pair."""
        self._learn()
        return Behind(self._twice, self._known)

    def _learn(self) -> None:
        text = np.concatenate(self._waiting)
        if len(text) < 2:
            return
        self._waiting = [text[-1:]]
        within = (text >= 0) & (text < self._vocab_size)
        first, second = (part[within[:-1] & within[1:]] for part in (text[:-1], text[1:]))
        new, counts = np.unique((first << 32) + second, return_counts=True)
        twice = new[(counts > 1) | np.isin(new, self._known)]
        self._known = np.union1d(self._known, new)
        self._twice = np.union1d(self._twice, twice >> 32)
