"""The tokens after all nodes of a pass, on the device of their scores: the best, drawn, or what tests give."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.columns import Columns, columns_of, kind_of
from talon_core.runtime.draws import MOST_SCORES, WarperError, take_tokens, warped
from talon_core.runtime.tested import TESTED
from talon_core.runtime.tested_trees import sent_trees
from talon_core.target import ALL_WALKED, NO_TOKEN, DrawnTests, NodeDraws
from talon_core.tree import IntArray

BEST = NodeDraws((), frozenset(), None)
"""The most likely token of the raw scores."""


@attrs.frozen(eq=False)
class Followed:
    """What the nodes of a pass are followed by.

    Attributes:
        tokens: after each node, shape `(queries,)`, int64; `NO_TOKEN` for nodes that nothing is taken for.
        within: whether a walk may go to a node, shape `(queries,)`; None for to all.
        numbers: with how many numbers tests and draws were made, by slot, int64; None where there were no tests.
        failed: the slots whose warpers have raised; nothing is taken for any of their nodes.
    """

    tokens: Tensor
    within: Tensor | None = None
    numbers: Tensor | None = None
    failed: set[int] = attrs.field(factory=set)


def next_tokens(
    logits: Tensor,
    numbers: Tensor,
    starts: IntArray,
    slots: Collection[int],
    drawn: Mapping[int, NodeDraws],
    unwalked: Mapping[int, int] = ALL_WALKED,
) -> Followed:
    """The token after each node of some trees. Trees whose scores are warped alike are served together.

    Alike are processors that differ in a temperature, or the number of a top-k, top-p or min-p: what comes out has the
    bits of what they do alone.

    Args:
        logits: raw scores of all trees, one after another, shape `(queries, vocab)`.
        numbers: to draw with, shape `(queries,)`, float64, in [0, 1).
        starts: where the nodes of each slot start, shape `(slots + 1,)`.
        slots: of the trees.
        drawn: how tokens are taken; the best of the raw scores in the other slots.
        unwalked: of the slots whose trees end with nodes that no path goes to, how many these are.
    """
    found = _Found(logits, numbers, starts)
    alike: dict[Hashable, list[int]] = {}
    for slot in sorted(slots):
        alike.setdefault(_key(drawn.get(slot, BEST)), []).append(slot)
    for own in alike.values():
        how = drawn.get(own[0], BEST)
        columns = columns_of([drawn.get(slot, BEST).warpers for slot in own], own, starts, logits.device)
        try:
            if how.tests is None:
                found.take(own, how, columns)
            else:
                found.test({slot: drawn[slot] for slot in own}, how.tests, unwalked, columns)
        except WarperError:
            found.failed.update(own)  # each of them finds it again where it ends one text alone
    return Followed(found.tokens, found.within, found.used, found.failed)


class _Found:
    """What is known of the tokens after the nodes of a pass."""

    def __init__(self, logits: Tensor, numbers: Tensor, starts: IntArray) -> None:
        self.tokens = torch.full((len(logits),), NO_TOKEN, device=logits.device)
        self.within: Tensor | None = None
        self.used: Tensor | None = None
        self.failed: set[int] = set()
        self._logits, self._numbers, self._starts = logits, numbers, starts

    def take(self, slots: Sequence[int], how: NodeDraws, columns: Columns | None) -> None:
        """Take a token for every node of these trees."""
        rows = _rows(self._starts, slots)
        if columns is not None:
            columns = attrs.evolve(columns, numbers=_joined(columns.numbers, rows))
        found = take_tokens(_joined(self._logits, rows), how, _joined(self._numbers, rows), columns)
        ends = np.cumsum([0, *(of.stop - of.start for of in rows)]).tolist()
        for of, (start, end) in zip(rows, pairwise(ends), strict=True):
            self.tokens[of] = found[start:end]

    def test(
        self,
        draws: Mapping[int, NodeDraws],
        tests: DrawnTests,
        unwalked: Mapping[int, int],
        columns: Columns | None,
    ) -> None:
        """Test the drawn children of these trees, of some trees at a time."""
        how = next(iter(draws.values()))
        tested = []  # noted when all of them are known, as a processor may raise for the last
        for slots in _shared(draws, max(1, MOST_SCORES // self._logits.shape[1])):
            trees = sent_trees({slot: draws[slot] for slot in slots}, self._starts, self.tokens.device, unwalked)
            tested.append((trees, TESTED[tests.order](trees, partial(self._laws, how, columns, trees.rows))))
        if self.within is None or self.used is None:
            self.within = torch.ones_like(self.tokens, dtype=torch.bool)
            self.used = self.tokens.new_zeros(len(self._starts) - 1)
        for trees, taken in tested:
            rows = trees.rows[:-1]  # the last place is nobody's
            self.tokens[rows], self.within[rows] = taken.tokens[:-1], taken.within[:-1]
            self.used[trees.slots] = taken.numbers

    def _laws(self, how: NodeDraws, columns: Columns | None, rows: Tensor, places: Tensor) -> Tensor:
        at = rows[places]
        return torch.softmax(warped(self._logits[at], how, columns and columns[at]).double(), dim=-1)


def _key(draws: NodeDraws) -> Hashable:
    """The same only for those that do the same to scores, but for numbers that may differ."""
    return draws.numbers is None, draws.tests and draws.tests.order, tuple(map(kind_of, draws.warpers))


def _rows(starts: IntArray, slots: Sequence[int]) -> list[slice]:
    """The rows of some slots, ascending; neighbours together."""
    rows: list[slice] = []
    for slot in slots:
        start, end = int(starts[slot]), int(starts[slot + 1])
        if rows and rows[-1].stop == start:
            start = rows.pop().start
        rows.append(slice(start, end))
    return rows


def _joined(of: Tensor, rows: Sequence[slice]) -> Tensor:
    return of[rows[0]] if len(rows) == 1 else torch.cat([of[each] for each in rows])


def _shared(draws: Mapping[int, NodeDraws], most: int) -> Iterator[list[int]]:
    """The slots of some trees in parts, each with at most so many laws that children were drawn from, or one tree."""
    part: list[int] = []
    laws = 0
    for slot, one in draws.items():
        own = 1 + len(one.tests.tree.drawn) if one.tests is not None else 1
        if part and laws + own > most:
            yield part
            part, laws = [], 0
        part.append(slot)
        laws += own
    if part:
        yield part
