"""Trees with drawn children as a device reads them: who is whose child, and what was drawn from which law."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core.runtime.transfers import sent_together
from talon_core.target import ALL_WALKED, NodeDraws
from talon_core.tree import FloatArray, IntArray, TokenTree

NOBODY = -1
"""The parent of a root, and the last of all places."""


@attrs.frozen(eq=False)
class Level:
    """The nodes of one depth whose children were drawn.

    Attributes:
        nodes: which, shape `(nodes,)`, int64, on the device.
        most: draws of the one that has most; 0 where there is none.
    """

    nodes: Tensor
    most: int


@attrs.frozen(eq=False)
class DrawnTrees:
    """Some trees, their nodes one after another. Tensors are on the device, and int64 where nothing else is said.

    There is one place more than there are nodes. The last one is nobody's: what is not there is written to it.

    Attributes:
        slots: in which slot each tree is, shape `(trees,)`.
        roots: the first node of each, likewise.
        rows: in which row of the pass's scores each node is, shape `(places,)`.
        parents: likewise.
        tokens: likewise.
        last: 1 where the text ends with a node's token, so that nothing below it is tested, likewise.
        counts: how many draws a node's children came from, likewise.
        again: 1 where a token could come out twice, likewise.
        law_of: which of `laws` they came from, likewise.
        drawn: what came out, in this order, shape `(places, most)`.
        children: which nodes hold it, likewise.
        events: what happens in a tree where every test fails, in order: the nodes that are come to and those that are
            left, each behind all that are below it; shape `(trees, longest)`.
        leaving: 1 for those that are left, likewise.
        laws: what children were drawn from, shape `(laws, vocab)`, float64.
        numbers: the next ones of each tree's randomness, shape `(trees, most)`, float64, in [0, 1).
        levels: by depth.
    """

    slots: Tensor
    roots: Tensor
    rows: Tensor
    parents: Tensor
    tokens: Tensor
    last: Tensor
    counts: Tensor
    again: Tensor
    law_of: Tensor
    drawn: Tensor
    children: Tensor
    events: Tensor
    leaving: Tensor
    laws: Tensor
    numbers: Tensor
    levels: Sequence[Level]


def sent_trees(
    tests: Mapping[int, NodeDraws], starts: IntArray, device: torch.device, unwalked: Mapping[int, int] = ALL_WALKED
) -> DrawnTrees:
    """Send trees to a device, in two copies: one of whole numbers, one of laws and numbers to draw with.

    Args:
        tests: by slot, each with a tree and numbers.
        starts: where the nodes of each slot start among the rows of the pass, shape `(slots + 1,)`.
        device: where the scores are.
        unwalked: of the slots whose trees end with nodes that no path goes to, how many these are.
    """
    places, roots, events, told = _Places(), [], [], []
    for slot, draws in tests.items():
        assert draws.tests is not None
        assert draws.numbers is not None
        tree = draws.tests.tree
        roots.append(len(places.all))
        places.add(tree, len(tree) - unwalked.get(slot, 0), int(starts[slot]), draws.ends)
        events.append(places.events(roots[-1]))
        told.append(draws.numbers)
    levels = places.levels()
    places.all.append(_Place(0, NOBODY, 0))
    laws, numbers = sent_together([places.laws or [np.zeros(1)], even(told, 0.0)], device)
    nodes = even([[node for node, _ in own] for own in events], NOBODY)
    leaving = even([[leaves for _, leaves in own] for own in events], 0)
    by_depth = [np.array(level, dtype=np.int64) for level in levels]
    parts = [np.array([*tests]), np.array(roots), *places.columns(), nodes, leaving, *by_depth]
    slots, firsts, rows, parents, tokens, last, counts, again, law_of, drawn, children, come_to, left, *at_depth = (
        sent_together(parts, device)
    )
    most = (max((len(places.all[node].drawn) for node in level), default=0) for level in levels)
    return DrawnTrees(
        slots,
        firsts,
        rows,
        parents,
        tokens,
        last,
        counts,
        again,
        law_of,
        drawn,
        children,
        come_to,
        left,
        laws,
        numbers,
        [*map(Level, at_depth, most)],
    )


@attrs.define
class _Place:
    """A node, as `DrawnTrees` has it."""

    row: int
    parent: int
    token: int
    last: bool = False
    again: bool = False
    law: int = 0
    drawn: Sequence[int] = ()
    children: Sequence[int] = ()
    depth: int = 0


class _Places:
    """All nodes, and the laws that their children came from."""

    def __init__(self) -> None:
        self.all: list[_Place] = []
        self.laws: list[FloatArray] = []

    def add(self, tree: TokenTree, nodes: int, start: int, ends: frozenset[int]) -> None:
        """The first nodes of a tree, whose rows start at `start`."""
        first = len(self.all)
        parents, tokens, depths = tree.parents.tolist(), tree.tokens.tolist(), tree.depths.tolist()
        child_of: dict[tuple[int, int], int] = {}
        for node in range(1, nodes):
            child_of.setdefault((parents[node], tokens[node]), first + node)
        for node in range(nodes):
            above = first + parents[node] if node else NOBODY
            place = _Place(start + node, above, tokens[node], node > 0 and tokens[node] in ends, depth=depths[node])
            drawn = tree.drawn.get(node)
            if drawn is not None and not place.last:
                place.again, place.law, place.drawn = drawn.replacement, len(self.laws), drawn.tokens.tolist()
                place.children = [child_of[node, token] for token in place.drawn]
                self.laws.append(drawn.law)
            self.all.append(place)

    def events(self, root: int) -> list[tuple[int, bool]]:
        """Of a tree: each node that is come to, and again when it is left."""
        found: list[tuple[int, bool]] = []
        waiting = [(root, False)]
        while waiting:
            node, leaving = waiting.pop()
            found.append((node, leaving))
            if not leaving:
                below = [*dict.fromkeys(self.all[node].children)]
                waiting += [(node, True), *((child, False) for child in reversed(below))]
        return found

    def levels(self) -> list[list[int]]:
        """The nodes with draws, by depth; as many depths as there are."""
        found: list[list[int]] = [[] for _ in range(1 + max(place.depth for place in self.all))]
        for node, place in enumerate(self.all):
            if place.drawn:
                found[place.depth].append(node)
        return found

    def columns(self) -> list[IntArray]:
        """From `rows` to `children`, as `DrawnTrees` has them."""
        names = ("row", "parent", "token", "last", "again", "law")
        rows, parents, tokens, last, again, law = (
            np.array([getattr(place, name) for place in self.all], dtype=np.int64) for name in names
        )
        counts = np.array([len(place.drawn) for place in self.all])
        drawn, children = (
            even([place.drawn for place in self.all], 0),
            even([place.children for place in self.all], NOBODY),
        )
        return [rows, parents, tokens, last, counts, again, law, drawn, children]


def even(rows: Sequence[Any], fill: float) -> NDArray[Any]:
    """Rows of different lengths in one array, the shorter ones filled up at the end; at least one place each."""
    longest = max(1, *map(len, rows)) if rows else 1
    filled = np.full((len(rows), longest), fill, dtype=np.float64 if isinstance(fill, float) else np.int64)
    for to, row in zip(filled, rows, strict=True):
        to[: len(row)] = row
    return filled
