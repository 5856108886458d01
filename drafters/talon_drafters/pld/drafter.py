"""The running side of `pld`: where each few tokens of a text stood first, or last."""

from functools import partial
from itertools import takewhile

from talon_core.drafter import Drafter
from talon_core.tree import IntArray
from talon_drafters.lookup import Lookup, LookupDrafter, Trie
from talon_drafters.pld.options import Pld


def open_pld(options: Pld, vocab_size: int) -> Drafter:
    """The drafter with these options."""
    return LookupDrafter(partial(PromptLookup, options, vocab_size), vocab_size, options.length)


class PromptLookup(Lookup):
    """A text, and for each `shortest` to `longest` tokens of it the place after them.

    The end of the text is no such place, as nothing follows there. A token costs a step for each number of tokens,
    whatever the length of the text.
    """

    def __init__(self, options: Pld, vocab_size: int) -> None:
        self._options = options
        self._vocab_size = vocab_size
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    def append(self, tokens: IntArray) -> None:
        text, options = self._text, self._options
        for token in tokens.tolist():
            end = len(text)
            for size in range(options.shortest, min(options.longest, end) + 1):
                before = tuple(text[end - size :])
                if options.last:
                    self._places[before] = end
                else:
                    self._places.setdefault(before, end)
            text.append(token)

    def find(self) -> Trie:
        text, options = self._text, self._options
        for size in range(options.longest, options.shortest - 1, -1):
            place = self._places.get(tuple(text[-size:])) if size <= len(text) else None
            if place is not None:
                followed = text[place : place + options.length]
                return Trie.chain([*takewhile(lambda token: 0 <= token < self._vocab_size, followed)], size)
        return Trie()
