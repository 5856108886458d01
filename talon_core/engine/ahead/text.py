"""What is known of one sequence whose drafter goes on while its trees are verified."""

from collections.abc import Iterable

import attrs
import numpy as np

from talon_core.choices import Choices, SeededChoices
from talon_core.drafter import Committed
from talon_core.engine.ahead.asking import Answer, nodes_told
from talon_core.engine.ahead.prepared import Base, Continuation, Path, Prepared, Row
from talon_core.rounds import Span
from talon_core.tree import IntArray, TokenTree

_APART = 0x5EED_A4EA_D000_0000
"""The seed of what grows guesses: nobody else's numbers hang on these, so that what is prepared knows no draws."""


class Text:
    """One sequence in a slot.

    Args:
        opening: how often slots had been opened before; it tells this sequence from others.
        length: tokens of its prompt.

    Attributes:
        base: its text.
        broken: nobody knows what the drafter knows of it: nothing more is drafted.
        unprepared: something has failed, so that nothing could be prepared for the next round.
        at_once: the current tree is drafted by the schedule's instant source.
        fresh: what the drafter itself has answered at nodes of the current tree, and which row of it.
        kept_rows: what was prepared for nodes of the current tree, and was their answer.
        parents: nodes of the current tree that have children in what is verified of it.
        deepest: the deepest token of the current tree that can still be emitted.
        continuation: what was prepared for the outcome that has come; None where nothing was.
        hit: whether there is such; None where nothing was to be prepared, or nothing can be drafted.
        width: the most candidates a node that were wanted.
        laws: whether somebody has wanted whole laws.
        choices: what grows guesses draws from.
        spans: what was prepared for it, and waited for, in this round.
    """

    def __init__(self, opening: int, length: int) -> None:
        self.base = Base(opening, length)
        self.broken = False
        self.unprepared = False
        self.at_once = False
        self.laws = False
        self.width = 0
        self.hit: bool | None = None
        self.continuation: Continuation | None = None
        self.fresh: dict[int, tuple[Answer, int]] = {}
        self.kept_rows: dict[int, Row] = {}
        self.parents: frozenset[int] = frozenset()
        self.deepest = 0
        self.choices: Choices = SeededChoices(np.random.SeedSequence(_APART))
        self.spans: list[Span] = []
        self._paths: dict[int, Path] = {0: ()}
        self._accepted = self._tested = self._hits = self._misses = 0

    @property
    def counts(self) -> dict[str, int]:
        """The counts of an `Outlook`."""
        return {
            "accepted": self._accepted,
            "tested": self._tested,
            "hits": self._hits,
            "misses": self._misses,
        }

    def path(self, tree: TokenTree, node: int) -> Path:
        """The tokens from the root to a node of the current tree, without the root's."""
        found = self._paths.get(node)
        if found is None:
            found = (*self.path(tree, int(tree.parents[node])), int(tree.tokens[node]))
            self._paths[node] = found
        return found

    def kept(self, tree: TokenTree, node: int, wanted: int) -> Row | None:
        """What was prepared for a node of the current tree, if it answers for so many candidates; its answer then."""
        if self.continuation is None:
            return None
        row = self.continuation.get(self.path(tree, node))
        if row is None or not row.answers(wanted):
            return None
        self.kept_rows[node] = row
        return row

    def known(self) -> dict[int, Row]:
        """What is known of the nodes of the current tree, whoever has answered.

        What the drafter has answered was checked by whoever has drafted with it.
        """
        asked = {node: Row.of(answer.given, row, answer.frontier.width) for node, (answer, row) in self.fresh.items()}
        return self.kept_rows | asked

    def unasked(self, tree: TokenTree, nodes: Iterable[int]) -> set[int]:
        """These nodes, and those above them, as far as the drafter was not asked there."""
        found: set[int] = set()
        for node in nodes:
            while node >= 0 and node not in self.fresh and node not in found:
                found.add(node)
                node = int(tree.parents[node])
        return found

    def told(self, committed: Committed) -> Committed:
        """What the drafter is told of a round; see `nodes_told`."""
        return attrs.evolve(committed, nodes=nodes_told(committed.nodes, self.fresh))

    def commit(self, committed: Committed, prepared: Prepared | None) -> None:
        """The text goes on; what was prepared for another outcome, or for another text, is dropped.

        Args:
            committed: what has come.
            prepared: in the meantime, or before; None if nothing was.
        """
        self._count(committed.nodes)
        self.continuation, self.hit = None, None
        is_over = len(committed.tokens) >= self.deepest  # nothing is drafted any more
        if prepared is not None and prepared.base == self.base and not is_over:
            on_tree = len(committed.nodes) == len(committed.tokens)  # all but the last token
            outcome = int(committed.nodes[-1]), int(committed.tokens[-1])
            found = prepared.below.get(outcome) if on_tree else None
            self.hit = found is not None and () in found
            self.continuation = found if self.hit else None
            self._hits += self.hit
            self._misses += not self.hit
        self.base = Base(self.base.opening, self.base.length + len(committed.tokens))
        self.fresh, self.kept_rows, self.parents, self._paths = {}, {}, frozenset(), {0: ()}

    def _count(self, nodes: IntArray) -> None:
        """A drafted token was accepted at each place of the path but the last, if anything was drafted there."""
        accepted = len(nodes) - 1
        self._accepted += accepted
        self._tested += accepted + (int(nodes[-1]) in self.parents)
