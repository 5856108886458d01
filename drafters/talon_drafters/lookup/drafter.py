"""A drafter that looks up, once a round, how the text may go on, and offers what was found along the tree."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Frontier, Proposed, Retriever
from talon_core.runtime.open_slots import OpenSlots
from talon_core.tree import FloatArray, IntArray
from talon_drafters.lookup.trie import Trie


class Lookup(ABC):
    """The text of one slot, and what a look-up of its end finds."""

    @abstractmethod
    def append(self, tokens: IntArray) -> None:
        """The text goes on with these tokens, shape `(new,)`, int64; they may be outside of the vocabulary."""

    @abstractmethod
    def find(self) -> Trie:
        """How the text may go on; all tokens are in the vocabulary."""

    def guess(self) -> Trie:
        """As `find`, but only the likeliest next token has to be right, and how often it was seen of how many.

        It is asked before each token of a text. Override it where `find` takes long.
        """
        return self.find()


Text = TypeVar("Text", bound=Lookup)

ELSE, FALLS = 3.0, 1.5
"""After one token that is the same one in four continuations comes true, after eight seven in eight. So it was where
the last tokens of texts by SmolLM2-135M-Instruct stood first, see `talon_drafters.hybrid.fitting`."""


@attrs.define(eq=False)
class _Slot(Generic[Text]):
    """A text, and what was found for it since it last grew."""

    text: Text
    found: Trie | None = None


class LookupDrafter(Retriever, Generic[Text]):
    """Looks up the end of the committed text once a round; deeper nodes follow what was found, in a trie.

    At a node that stands in the trie, the law gives each child its share of the continuations that pass through the
    node; the share of those that end there, or go on in a way that the trie left out, is spread evenly over the
    vocabulary. At any other node nothing is known, and the law is uniform.

    Where it is a part of `hybrid`, what it finds is worth less the shorter the match is: of n continuations after m
    tokens that were the same, those above the node among them, each counts 1 / (n + `ELSE` m^-`FALLS`).

    Args:
        make: makes the look-up of a slot, of an empty text.
        vocab_size: the target's.
        max_depth: tokens of the longest continuation.
        said: see `Drafter.describe`.
    """

    def __init__(
        self, make: Callable[[], Text], vocab_size: int, max_depth: int, said: Mapping[str, object] | None = None
    ) -> None:
        self.max_depth = max_depth
        self._make = make
        self._vocab_size = vocab_size
        self._said = said or {}
        self._slots = OpenSlots[_Slot[Text]]()

    def describe(self) -> Mapping[str, object]:
        return self._said

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._slots[slot] = _Slot(self._make())
        self._append(slot, prompt)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        for slot, new in committed.items():
            self._append(slot, new.tokens)

    def close(self, slot: int) -> None:
        del self._slots[slot]

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        return Proposed([self._propose(one) for one in frontiers])

    def look_up(self, frontier: Frontier) -> Sequence[Mapping[int, float]]:
        trie, tree = self._found(frontier.slot), frontier.tree
        paths = [tree.tokens[tree.path(node)][1:].tolist() for node in frontier.nodes.tolist()]
        return [_worth(trie, trie.after(path), len(path)) for path in paths]

    def guess(self, slot: int, last: int) -> tuple[int, float] | None:
        trie = self._slots[slot].text.guess()
        return next(iter(_worth(trie, 0, 0).items()), None)  # the most frequent child comes first

    def _found(self, slot: int) -> Trie:
        own = self._slots[slot]
        if own.found is None:
            own.found = own.text.find()
        return own.found

    def _append(self, slot: int, tokens: IntArray) -> None:
        self._slots[slot].text.append(tokens)
        self._slots[slot].found = None

    def _propose(self, frontier: Frontier) -> Candidates:
        trie, tree = self._found(frontier.slot), frontier.tree
        nodes = [trie.after(tree.tokens[tree.path(node)][1:].tolist()) for node in frontier.nodes.tolist()]
        offered = [self._offered(trie, node, frontier.width) for node in nodes]
        return Candidates.from_rows(tree, frontier.nodes, offered, partial(self._law, trie, nodes))

    def _offered(self, trie: Trie, node: int | None, width: int) -> list[tuple[int, float]]:
        """The most frequent next tokens with their probabilities, best first."""
        if node is None:
            return []
        floor, total = self._floor(trie, node), trie.counts[node]
        children = islice(trie.children[node].items(), width)
        return [(token, trie.counts[child] / total + floor) for token, child in children]

    def _floor(self, trie: Trie, node: int) -> float:
        """What every token of the vocabulary gets."""
        total = trie.counts[node]
        left = total - sum(trie.counts[child] for child in trie.children[node].values())
        return left / total / self._vocab_size if total else 1 / self._vocab_size

    def _law(self, trie: Trie, nodes: Sequence[int | None], row: int) -> FloatArray:
        node = nodes[row]
        if node is None:
            return np.full(self._vocab_size, 1 / self._vocab_size)
        law = np.full(self._vocab_size, self._floor(trie, node))
        for token, child in trie.children[node].items():
            law[token] += trie.counts[child] / trie.counts[node]
        return law


def _worth(trie: Trie, node: int | None, depth: int) -> dict[int, float]:
    """What tokens after a node at a depth are worth, most frequent first."""
    if node is None:
        return {}
    total = trie.counts[node] + ELSE * (trie.matched + depth) ** -FALLS
    return {token: trie.counts[child] / total for token, child in trie.children[node].items()}
