"""A suffix automaton of a growing text that knows what followed each context, how often and how lately."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Context(NamedTuple):
    """Where a suffix of some token sequence stands in the automaton.

    Attributes:
        state: the automaton's state; 0 is the empty string.
        matched: length of the suffix, in tokens. The suffix occurs in the text.
    """

    state: int
    matched: int


class Level(NamedTuple):
    """One set of places in the text whose left context agrees with the query.

    Attributes:
        matched: how many tokens agree.
        shorter: how many tokens agree at the next level, 0 at the last one. Every length above it and up to
            `matched` finds the same places.
        total: how many of these places are followed by a token (the text's end is not).
        following: for each token that followed, the state of "context, then token", least recently seen first.
    """

    matched: int
    shorter: int
    total: int
    following: Mapping[int, int]


class SuffixAutomaton:
    """The smallest automaton of all substrings of a text, built token by token (Blumer et al. 1985).

    A state stands for all substrings that end at the same set of places; its suffix link leads to the longest suffix
    that also ends elsewhere. So the suffix links from a context list, longest match first, every different set of
    earlier places that a suffix of it has, and there are at most `2 n` states for `n` tokens.

    What follows a context is read off its transitions: "context, then `c`" occurs as often as the state behind the
    transition `c` has end places. Appending a token adds one end place to every state on the suffix links of the new
    end. These can be as many as the text is long (all tokens equal), so counts are kept for matches of at most
    `max_match` tokens only, which bounds the work; the state of the text's suffix of that length is carried
    along. The same walk moves the token to the end of each transition table, which thereby stays sorted by recency.

    Appending a token costs amortised constant time plus at most `max_match + 1` steps; following a token in a context
    costs amortised constant time along a path.
    """

    def __init__(self, max_match: int) -> None:
        """An automaton of the empty text; `max_match` (at least 1) is the longest context that is told apart."""
        self.max_match = max_match
        self._following: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of the longest string of the state
        self._ends = [0]  # end places in the text
        self._total = [0]  # end places that are followed by a token
        self._last = 0  # state of the whole text
        self._suffix = 0  # state of the text's suffix of `_suffix_length` tokens
        self._suffix_length = 0  # min(tokens, max_match + 1): a context of max_match tokens and what follows it

    def __len__(self) -> int:
        """Number of tokens of the text."""
        return self._length[self._last]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        following, link, length, ends, total = self._following, self._link, self._length, self._ends, self._total
        last, suffix, suffix_length = self._last, self._suffix, self._suffix_length
        for token in tokens:
            new = len(link)
            following.append({})
            length.append(length[last] + 1)
            ends.append(0)
            total.append(0)
            state = last
            while state >= 0 and token not in following[state]:
                following[state][token] = new
                state = link[state]
            if state < 0:
                link.append(0)
            else:
                target = following[state][token]
                if length[target] == length[state] + 1:
                    link.append(target)
                else:  # the shorter strings of `target` now end in one more place than its longer ones: split it
                    clone = new + 1
                    link.append(clone)
                    following.append(following[target].copy())
                    link.append(link[target])
                    length.append(length[state] + 1)
                    ends.append(ends[target])
                    total.append(total[target])
                    link[target] = clone
                    while state >= 0 and following[state].get(token) == target:
                        following[state][token] = clone
                        state = link[state]
            last = new

            state = suffix
            while state > 0:  # the contexts that `token` follows
                table = following[state]
                table[token] = table.pop(token)
                total[state] += 1
                state = link[state]
            suffix = following[suffix][token]
            suffix_length += 1
            if suffix_length > self.max_match + 1:
                suffix_length -= 1
                if length[link[suffix]] >= suffix_length:
                    suffix = link[suffix]
            state = suffix
            while state > 0:
                ends[state] += 1
                state = link[state]
        self._last, self._suffix, self._suffix_length = last, suffix, suffix_length

    def context(self) -> Context:
        """The longest suffix of the text, of at most `max_match` tokens, that occurs elsewhere in it as well."""
        state, matched = self._suffix, min(self._suffix_length, self.max_match)
        if self._length[self._link[state]] >= matched:
            state = max(self._link[state], 0)
        while state and not self._following[state]:
            state = self._link[state]
        return Context(state, min(matched, self._length[state]))

    def follow(self, context: Context, token: int) -> Context:
        """The longest suffix of "`context`, then `token`", of at most `max_match` tokens, that occurs in the text."""
        state, matched = context
        following, link = self._following, self._link
        while token not in following[state]:
            state = link[state]
            if state < 0:
                return Context(0, 0)
            matched = self._length[state]
        state = following[state][token]
        if matched < self.max_match:
            return Context(state, matched + 1)
        if self._length[link[state]] >= matched:
            state = link[state]
        return Context(state, matched)

    def levels(self, context: Context) -> list[Level]:
        """The sets of places that suffixes of `context` are followed by a token at, longest match first."""
        levels = []
        state, matched = context
        while state > 0:
            shorter_state = self._link[state]
            shorter = self._length[shorter_state]
            if self._total[state]:
                levels.append(Level(matched, shorter, self._total[state], self._following[state]))
            state, matched = shorter_state, shorter
        return levels

    def count(self, state: int) -> int:
        """How often the strings of a state from `Level.following` occur in the text."""
        return self._ends[state]
