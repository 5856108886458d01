"""The running side of `lookahead`: a pool for each sequence, and a window that the target is asked about."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from talon_core.drafter import Committed, Drafter
from talon_core.inquiry import Inquirer, Inquiry
from talon_core.runtime.open_slots import OpenSlots
from talon_core.tree import IntArray, TokenTree
from talon_drafters.lookahead.options import Lookahead
from talon_drafters.lookahead.pool import Pool
from talon_drafters.lookahead.window import Window, first_guesses, most_nodes
from talon_drafters.lookup import LookupDrafter


def open_lookahead(options: Lookahead, vocab_size: int) -> Drafter:
    """The drafter with these options; one without a window asks nothing."""
    if not options.window:
        return LookupDrafter(partial(Pool, options, vocab_size), vocab_size, options.ngram - 1)
    return LookaheadDrafter(options, vocab_size)


class LookaheadDrafter(LookupDrafter[Pool], Inquirer):
    """Offers what the pool has, and asks the target about the window beside each tree.

    Near the end of a text, where the window would reach behind its last token, nothing is asked any more.

    Args:
        options: the sizes of both.
        vocab_size: the target's.
    """

    def __init__(self, options: Lookahead, vocab_size: int) -> None:
        super().__init__(partial(Pool, options, vocab_size), vocab_size, options.ngram - 1)
        self.most_added = most_nodes(options.window, options.ngram)
        self._options = options
        self._windows = OpenSlots[Window]()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        super().open(slot, prompt, room)
        self._windows[slot] = self._window(prompt)

    def _window(self, prompt: IntArray) -> Window:
        """A window whose guesses are tokens of the prompt, the same whenever it is the same prompt."""
        columns, ngram = self._options.window, self._options.ngram
        known = prompt[(prompt >= 0) & (prompt < self._vocab_size)]
        guesses = np.random.default_rng(0).choice(known if len(known) else [0], first_guesses(columns, ngram))
        return Window(columns, ngram, guesses.tolist())

    def close(self, slot: int) -> None:
        super().close(slot)
        del self._windows[slot]

    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Inquiry | None:
        if deepest < first_guesses(self._options.window, self._options.ngram):
            return None
        pairs = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        known = {pair: node for node, pair in enumerate(pairs)}  # what is in the tree is not run twice
        tokens: list[int] = []
        parents: list[int] = []
        ends = []
        for path in self._windows[slot].paths():
            node = 0
            for token in path:
                child = known.get((node, token))
                if child is None:
                    child = known[node, token] = len(tree) + len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = child
            ends.append(node)
        return Inquiry(*(np.array(one, dtype=np.int64) for one in (tokens, parents, ends)))

    def commit(self, committed: Mapping[int, Committed]) -> None:
        for slot, new in committed.items():
            pool = self._slots[slot].text
            if new.answers is not None and pool.last is not None:
                for first, others in self._windows[slot].advance(pool.last, new.answers.tolist()):
                    pool.add(first, others)
        super().commit(committed)
