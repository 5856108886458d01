"""Sequoia's trees: the best shape for measured acceptance, filled by draws."""

from functools import cache, cached_property
from numbers import Real
from typing import Any

import attrs
import numpy as np
from attrs.validators import ge, gt, le

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drawn import sharpened
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestLaws
from talon_core.forest_grower import ForestGrowth
from talon_core.policy import Growth
from talon_core.searching import searched
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import turns_of
from talon_strategies.drawing import NOTHING, FollowsTheRequest, known_nodes, known_rows
from talon_strategies.options import numbers_of

Shape = tuple["Shape", ...]
"""A node by its children's shapes, in the order of their draws; `()` is a leaf."""

MEASURED: Any = "0.43;0.09;0.06;0.05;0.02;0.01;0.01;0.01"


def _acceptance(given: Any) -> Any:
    return numbers_of(given, float, "acceptance", "0.6;0.15;0.05")


def _probabilities(_: object, __: object, acceptance: Any) -> None:
    fine = isinstance(acceptance, tuple) and all(isinstance(p, Real) and 0 <= float(p) <= 1 for p in acceptance)
    if not fine or not 0 < sum(acceptance) <= 1 + 1e-9:
        raise ValueError(
            f"acceptance is {acceptance}; it must be probabilities of more than 0 and at most 1 together, "
            "as in 0.6;0.15;0.05"
        )


@attrs.frozen
class Sequoia(FollowsTheRequest, ForestDrawer):
    """Draws children without replacement into the shape that promises most (Sequoia, arXiv 2402.12374, section 3.1).

    The shape is found once, by dynamic programming, from the probability that the b-th child of a node is the one that
    is accepted. T(m, l, b), the most accepted tokens of a tree of m nodes and depth l whose root has b children:

        T(1, l, 0) = 1,   T(m, l, b) = max over y of T(y, l, b - 1) + p_b max over b' of T(m - y, l - 1, b')

    Among all sizes up to `budget` and depths up to `depth`, the shape has the least time for each accepted token, if
    a pass of the target takes 1 + `node_cost` for each node but the root and one of the drafter `draft_cost`.

    Attributes:
        budget: most nodes of the tree, the root included, at least 2.
        depth: most layers, 1 to 500.
        acceptance: p_1, p_2, ...: how often the first, second, ... draw under a node is the accepted one, adding up to
            more than 0 and at most 1; as text, numbers with `;` between them. `acceptance_by_draw`
            of `talon_core.bench.measurement` measures it; the default is SmolLM2's EAGLE-3 drafter at temperature 1
            with draws at 0.8, as `tests/benchmarks/drawn_agreement.py --drawn-at 0.8` shows it.
        draft_cost: a draft pass in passes of the target over a single node, at least 0.
        node_cost: each further node of a target pass, in the same unit, at least 0.
        temperature: tokens are drawn from the drafter's law at so many times the request's temperature, more than 0.
        follows: False draws at `temperature` itself, whatever the request's is.
    """

    name = "sequoia"
    paper = "arXiv 2402.12374"
    children = "without-replacement"
    default_rule = "traversal"
    budget: int = attrs.field(default=60, validator=[whole_number, ge(2)], metadata=searched(2, 64, log=True))
    depth: int = attrs.field(default=10, validator=[whole_number, ge(1), le(500)], metadata=searched(1, 12))
    acceptance: tuple[float, ...] = attrs.field(default=MEASURED, converter=_acceptance, validator=_probabilities)
    draft_cost: float = attrs.field(default=0.0, validator=[number, ge(0)])
    node_cost: float = attrs.field(default=0.0, validator=[number, ge(0)])
    temperature: float = attrs.field(default=0.8, validator=[number, gt(0)], metadata=searched(0.4, 1.2))
    follows: bool = attrs.field(default=True, validator=yes_or_no)

    @cached_property
    def shape(self) -> Shape:
        """The best shape."""
        return best_shape(self.budget, self.depth, self.acceptance, self.draft_cost, self.node_cost)

    def _shapes(self, tree: TokenTree) -> list[Shape]:
        """The shape below each node. A node that lacks children, as its law is small, lacks its last ones."""
        shapes, seen = [self.shape], [0] * len(tree)
        for parent in tree.parents[1:].tolist():
            shapes.append(shapes[parent][seen[parent]])
            seen[parent] += 1
        return shapes

    def width(self, tree: TokenTree) -> int:
        return 1

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        shapes, drawn = self._shapes(tree), {}
        frontier: list[int] = []
        nodes = len(tree)
        for row in known_rows(candidates):
            children = shapes[candidates.frontier[row]]
            law = sharpened(candidates.law(row), self.temperature)
            drawn[row] = candidates.draw(choices, row, len(children), law=law)
            for child in children[: len(drawn[row].tokens)]:
                if child:
                    frontier.append(nodes)
                nodes += 1
        return Growth(NOTHING, np.array(frontier, dtype=np.int64), drawn)

    def forest_widths(self, forest: Forest) -> int:
        return 1

    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        below, counts = self._table
        shapes = self._shapes_of(forest)
        rows = known_nodes(candidates)
        drawn = laws.drawing(self.temperature)
        wanted = np.repeat(rows, counts[shapes[candidates.frontier[rows]]])
        came = drawn.draw(wanted)
        parents = candidates.frontier[wanted[came]]
        own = below[shapes[parents], turns_of(parents)]
        return ForestGrowth(NOTHING, len(forest) + counts[own].nonzero()[0], drawn)

    def _shapes_of(self, forest: Forest) -> IntArray:
        """The shape below each node, as a row of the table."""
        below, _ = self._table
        found = np.zeros(len(forest), dtype=np.int64)
        for layer in forest.layers[1:]:
            nodes = slice(layer.first, layer.first + len(layer))
            found[nodes] = below[found[layer.parents], turns_of(layer.parents)]
        return found

    @cached_property
    def _table(self) -> tuple[IntArray, IntArray]:
        """All shapes below one another, the tree's first: the shapes of each one's children, and how many they are."""
        shapes, children = [self.shape], list[list[int]]()
        for shape in shapes:
            children.append([*range(len(shapes), len(shapes) + len(shape))])
            shapes += shape
        counts = np.array([len(own) for own in children])
        below = np.zeros((len(shapes), max(int(counts.max()), 1)), dtype=np.int64)
        below[np.arange(below.shape[1]) < counts[:, None]] = [child for own in children for child in own]
        return below, counts


@cache  # the copies of a policy, one for each sequence of a batch, have the same shape
def best_shape(
    budget: int, depth: int, acceptance: tuple[float, ...], draft_cost: float = 0.0, node_cost: float = 0.0
) -> Shape:
    """Sequoia's dynamic programme; arguments as the options of `Sequoia`."""
    depth = min(depth, budget - 1)
    tables = _Tables(budget, depth, acceptance)
    least, best = np.inf, (2, 1)
    for layers in range(1, depth + 1):
        for nodes in range(2, budget + 1):
            tokens = float(tables.most[layers][nodes])
            cost = (layers * draft_cost + 1 + node_cost * (nodes - 1)) / tokens if tokens > 0 else np.inf
            if cost < least - 1e-12:  # of equals, the shallower and smaller one
                least, best = cost, (nodes, layers)
    return tables.shape(*best)


class _Tables:
    """T(m, l, b) for all sizes, depths and numbers of children; minus infinity where there is no such tree."""

    def __init__(self, budget: int, depth: int, acceptance: tuple[float, ...]) -> None:
        leaf = np.full(budget + 1, -np.inf)
        leaf[1] = 1.0
        self.by_children = [[leaf]]  # [l][b], each of shape (budget + 1,)
        self.most = [leaf]  # [l]: the best over b
        self._gains: list[list[FloatArray]] = [[]]  # [l][b - 1]: what a b-th child of so many nodes adds
        for layers in range(1, depth + 1):
            below, tables, gains = self.most[layers - 1], [leaf], []
            for p in acceptance:
                gains.append(np.multiply(p, below, out=np.full_like(below, -np.inf), where=below > 0))
                splits = (self._split(tables[-1], gains[-1], nodes)[0] for nodes in range(budget + 1))
                tables.append(np.fromiter(splits, np.float64))
            self.by_children.append(tables)
            self.most.append(np.max(tables, axis=0))
            self._gains.append(gains)

    @staticmethod
    def _split(fewer: FloatArray, gain: FloatArray, nodes: int) -> tuple[float, int]:
        """The best way to give y of the nodes to the tree without its last child; what it promises, and y."""
        if nodes < 2:
            return -np.inf, 0
        promised = fewer[1:nodes] + gain[nodes - 1 : 0 : -1]
        y = int(promised.argmax())
        return float(promised[y]), y + 1

    def shape(self, nodes: int, layers: int) -> Shape:
        """The best tree of so many nodes and layers."""
        tables = self.by_children[layers]
        count = int(np.argmax([table[nodes] for table in tables]))
        children: list[Shape] = []
        while count:
            _, fewer = self._split(tables[count - 1], self._gains[layers][count - 1], nodes)
            children.append(self.shape(nodes - fewer, layers - 1))
            nodes, count = fewer, count - 1
        return tuple(reversed(children))
