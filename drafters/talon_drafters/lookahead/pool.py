"""The n-grams of one sequence, by their first token."""

from collections import deque
from collections.abc import Sequence

from talon_core.tree import IntArray
from talon_drafters.lookahead.options import Lookahead
from talon_drafters.lookup import Lookup, Trie


class Pool(Lookup):
    """For each token the newest n-grams that begin with it.

    Args:
        options: how many of what length, and whether those of the text are among them.
        vocab_size: tokens that are not below it, or negative, are never offered.

    Attributes:
        last: the last token of the text; None while there is none.
    """

    def __init__(self, options: Lookahead, vocab_size: int) -> None:
        self.last: int | None = None
        self._options = options
        self._vocab_size = vocab_size
        self._end: deque[int] = deque(maxlen=options.ngram)  # of the text
        self._after: dict[int, dict[tuple[int, ...], None]] = {}  # by first token the others, the newest last

    def add(self, first: int, others: Sequence[int]) -> None:
        """Put an n-gram into the pool; if it is there, it becomes the newest.

        Args:
            first: its first token.
            others: those after it, `ngram - 1`.
        """
        if not all(0 <= token < self._vocab_size for token in others):
            return
        known, own = self._after.setdefault(first, {}), (*others,)
        known.pop(own, None)
        known[own] = None
        if len(known) > self._options.guesses:
            del known[next(iter(known))]

    def append(self, tokens: IntArray) -> None:
        for token in tokens.tolist():
            self.last = token
            self._end.append(token)
            if self._options.text and len(self._end) == self._options.ngram:
                first, *others = self._end
                self.add(first, others)

    def find(self) -> Trie:
        found = self._after.get(self.last, {}) if self.last is not None else {}
        return Trie.of([*reversed(found)])
