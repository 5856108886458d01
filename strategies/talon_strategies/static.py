"""Static trees: every round has the same shape."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.errors import is_whole
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.policy import Growth
from talon_core.tree import IntArray, TokenTree

Place = tuple[int, ...]
"""A node of a shape: the ranks of the guesses along its path, 0 for the drafter's best; the root is `()`."""

FIFTEEN_LIKELY: Any = (  # text, as users write it and `talon list` shows it; the converter makes it a shape
    "0;1;2;0.0;0.1;0.2;1.0;2.0;0.0.0;0.0.1;0.1.0;1.0.0;0.0.0.0;0.0.0.0.0;0.0.0.0.0.0"
)


def _shape(given: str | Iterable[Iterable[int]]) -> tuple[Place, ...]:
    if isinstance(given, str):
        try:
            given = [[int(rank) for rank in place.split(".")] for place in given.split(";")]
        except ValueError:
            raise ValueError(
                f"shape {given!r} is not a list of paths: write child ranks joined by '.' and paths joined by ';', "
                "as in 0;1;0.0"
            ) from None
    try:
        return tuple(sorted((tuple(place) for place in given), key=lambda place: (len(place), place)))
    except TypeError:
        raise ValueError(
            f"shape is {given!r}; it must be paths of child ranks, as in [[0], [1], [0, 0]] or 0;1;0.0"
        ) from None


def _is_tree(_: "StaticTree", __: "attrs.Attribute[tuple[Place, ...]]", shape: tuple[Place, ...]) -> None:
    if not shape:
        raise ValueError("shape has no paths: it needs at least one, as in 0")
    known: set[Place] = {()}
    for place in shape:
        written = ".".join(map(str, place))
        if not place or not all(is_whole(rank) and rank >= 0 for rank in place):
            raise ValueError(f"shape has the path {place}: a path is one or more child ranks, 0 for the best child")
        if place in known:
            raise ValueError(f"shape has the path {written} twice")
        if place[:-1] not in known:
            missing = ".".join(map(str, place[:-1]))
            raise ValueError(f"shape has the path {written} without its parent {missing}: add {missing}")
        known.add(place)


@attrs.frozen
class StaticTree(ForestGrower):
    """Drafts the same shape in every round, as Medusa (arXiv 2401.10774, section 2.1.2) and EAGLE-1 do.

    A shape lists its nodes as paths of child ranks: `0.1` is the second-best guess after the best guess. Where the
    drafter knows fewer guesses than the shape asks for, the branch is left out.

    The default has 16 nodes with the root: the fifteen likeliest paths if, at every node and independently, the best
    guess is right with probability 0.6, the second with 0.15 and the third with 0.07. These figures are an
    assumption about a fair drafter, not a measurement; Medusa fits its own on calibration data.

    Attributes:
        shape: the nodes but the root, in any order, each after its parent's path is listed too. As text, paths are
            joined by `;` and ranks by `.`, as in `0;1;0.0`.
    """

    name = "static"
    purpose = "fixed shapes"
    paper = "arXiv 2401.10774"
    shape: tuple[Place, ...] = attrs.field(default=FIFTEEN_LIKELY, converter=_shape, validator=_is_tree)
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: 1 + len(self.shape), takes_self=True))

    @cached_property
    def _children(self) -> list[list[tuple[int, int]]]:
        """For each place, the root first and then in the order of `shape`: its children's (rank, place)."""
        children: list[list[tuple[int, int]]] = [[] for _ in range(self.budget)]
        number = {place: index for index, place in enumerate([(), *self.shape])}
        for place in self.shape:
            children[number[place[:-1]]].append((place[-1], number[place]))
        return children

    def _places(self, tree: TokenTree) -> list[int]:
        """The place each node of `tree` holds in the shape.

        A node that lacks children lacks its last ones, because padding ends a row: its i-th child holds the place of
        the shape's i-th.
        """
        places, children_seen = [0], [0] * len(tree)
        for parent in tree.parents[1:].tolist():
            places.append(self._children[places[parent]][children_seen[parent]][1])
            children_seen[parent] += 1
        return places

    @cached_property
    def _most(self) -> int:
        """Candidates that are looked at of a node."""
        return 1 + max(place[-1] for place in self.shape)

    def width(self, tree: TokenTree) -> int:
        return self._most

    def widths(self, forest: Forest) -> Count:
        return self._most

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        places = self._places(tree)
        known = (candidates.tokens >= 0).sum(axis=1).tolist()
        chosen: list[int] = []
        frontier: list[int] = []
        for row, node in enumerate(candidates.frontier.tolist()):
            for rank, place in self._children[places[node]]:
                if rank < known[row]:
                    if self._children[place]:
                        frontier.append(len(tree) + len(chosen))
                    chosen.append(row * candidates.width + rank)
        return Growth(np.array(chosen, dtype=np.int64), np.array(frontier, dtype=np.int64))

    @cached_property
    def _table(self) -> tuple[IntArray, IntArray, IntArray]:
        """How many children each place has, their ranks and their places; 0 behind these, shape `(places, most)`."""
        counts = np.array([len(own) for own in self._children])
        ranks, places = np.zeros((2, len(counts), counts.max()), dtype=np.int64)
        for place, own in enumerate(self._children):
            for nth, (rank, child) in enumerate(own):
                ranks[place, nth], places[place, nth] = rank, child
        return counts, ranks, places

    def _places_of(self, forest: Forest) -> IntArray:
        """The place that each node of a forest holds in the shape, as `_places` finds them."""
        found = np.zeros(len(forest), dtype=np.int64)
        for layer in forest.layers[1:]:
            nodes = np.arange(len(layer))
            first = np.maximum.accumulate(np.where(np.diff(layer.parents, prepend=-1) != 0, nodes, 0))  # of its parent
            found[layer.first + nodes] = self._table[2][found[layer.parents], nodes - first]
        return found

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        counts, ranks, places = self._table
        of = self._places_of(forest)[candidates.frontier]
        known = np.isfinite(candidates.logp).sum(axis=1)
        there = (np.arange(ranks.shape[1]) < counts[of][:, None]) & (ranks[of] < known[:, None])
        rows, nth = there.nonzero()
        chosen = rows * candidates.width + ranks[of[rows], nth]
        (goes_on,) = (counts[places[of[rows], nth]] > 0).nonzero()
        return ForestGrowth(chosen, len(forest) + goes_on)
