"""A trie of continuations: which tokens follow, and how often each beginning was seen."""

from collections.abc import Sequence

import attrs
import numpy as np

from talon_core.tree import IntArray

Beginning = tuple[int, ...]
"""The first tokens of a continuation."""

FEW = 64
"""Continuations up to which counting them one by one is faster."""


@attrs.frozen(eq=False)
class Trie:
    """The beginnings of some continuations. Node 0 is where all of them start.

    Attributes:
        counts: how many continuations pass through each node; of node 0, how many there are.
        children: for each node, the next nodes by token, most frequent first.
        matched: how many tokens were the same before them.
    """

    counts: list[int] = attrs.field(factory=lambda: [0])
    children: list[dict[int, int]] = attrs.field(factory=lambda: [{}])
    matched: int = 1

    def __len__(self) -> int:
        """Number of nodes, node 0 included."""
        return len(self.counts)

    def add(self, parent: int, token: int, count: int) -> int:
        """A new node; it must not be more frequent than those that its parent has already."""
        node = self.children[parent][token] = len(self.counts)
        self.counts.append(count)
        self.children.append({})
        return node

    def after(self, tokens: Sequence[int]) -> int | None:
        """The node that a path leads to; None if it leaves the trie."""
        node = 0
        for token in tokens:
            if token not in self.children[node]:
                return None
            node = self.children[node][token]
        return node

    @classmethod
    def chain(cls, tokens: Sequence[int], matched: int = 1) -> "Trie":
        """The trie of a single continuation."""
        trie, node = cls([1], matched=matched), 0
        for token in tokens:
            node = trie.add(node, token, 1)
        return trie

    @classmethod
    def of(cls, continuations: Sequence[Sequence[int]]) -> "Trie":
        """The trie of a few continuations; of equally frequent children that of an earlier one stands first."""
        trie = cls([len(continuations)])
        waiting = [(0, continuations)]
        for node, own in waiting:
            after: dict[int, list[Sequence[int]]] = {}
            for tokens in own:
                if tokens:
                    after.setdefault(tokens[0], []).append(tokens[1:])
            for token, rest in sorted(after.items(), key=lambda child: -len(child[1])):
                waiting.append((trie.add(node, token, len(rest)), rest))
        return trie

    @classmethod
    def most_frequent(cls, continuations: IntArray, end: int, most: int, matched: int = 1) -> "Trie":
        """The trie of the beginnings that are seen most often; of equally frequent ones the shorter come first.

        Args:
            continuations: shape `(matches, length)`, int64, at least one; a row ends before its first token that is
                not below `end`.
            end: all tokens of continuations are from 0 to below it.
            most: how many beginnings at most, node 0 not counted.
            matched: as the attribute.
        """
        count = _count_few if len(continuations) <= FEW else _count_many
        counts = count(continuations, end, most)
        trie = cls([len(continuations)], matched=matched)
        nodes: dict[Beginning, int] = {(): 0}
        for beginning in sorted(counts, key=lambda one: (-counts[one], len(one), one))[:most]:
            nodes[beginning] = trie.add(nodes[beginning[:-1]], beginning[-1], counts[beginning])
        return trie


def _count_few(continuations: IntArray, end: int, most: int) -> dict[Beginning, int]:
    """How often each beginning is seen."""
    counts: dict[Beginning, int] = {}
    for row in continuations.tolist():
        for place, token in enumerate(row, start=1):
            if token >= end:
                break
            beginning = (*row[:place],)
            counts[beginning] = counts.get(beginning, 0) + 1
    return counts


def _count_many(continuations: IntArray, end: int, most: int) -> dict[Beginning, int]:
    """The same, of those beginnings that may be among the most frequent, for thousands of continuations."""
    counts: dict[Beginning, int] = {}
    beginnings: list[Beginning] = [()]  # of this length, in their order
    rows = continuations
    places = np.zeros(len(rows), dtype=np.int64)  # which of them each row has
    for depth in range(rows.shape[1]):
        going = (places >= 0) & (rows[:, depth] < end)
        rows, places = rows[going], places[going]
        keys, inverse, numbers = np.unique(places * end + rows[:, depth], return_inverse=True, return_counts=True)
        best = (-numbers).argsort(kind="stable")[:most]
        if len(counts) >= most:  # a longer beginning is taken only if it is more frequent
            best = best[numbers[best] > sorted(counts.values())[-most]]
        best.sort()
        if not len(best):
            break
        beginnings = [
            (*beginnings[place], token)
            for place, token in zip((keys[best] // end).tolist(), (keys[best] % end).tolist(), strict=True)
        ]
        counts.update(zip(beginnings, numbers[best].tolist(), strict=True))
        place_of = np.full(len(keys), -1)
        place_of[best] = np.arange(len(best))
        places = place_of[inverse]
    return counts
