"""Trees at some positions of several texts, which grow together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.costs import Costs
from talon_core.engine.growing_forest import GrowingForest, Taking
from talon_core.errors import PluginError
from talon_core.forest import Forest, ForestCandidates, TreesApart
from talon_core.forest_drawer import ForestLaws
from talon_core.forest_planner import AskedLayer, Measure
from talon_core.rounds import Round, Span
from talon_core.trace.columns import NO_ROW, padding, tokens_of
from talon_core.trace.prices import Untold, priced
from talon_core.trace.several import PADDING, SeveralTexts
from talon_core.tree import FloatArray, IntArray, read_only
from talon_core.tree_arrays import begins_of, ints

NO_ROWS = np.arange(0)

Drawing = Callable[[IntArray, ForestCandidates, IntArray], ForestLaws]
"""`drawing(rows, shown, asked)`: the laws at a layer whose nodes have these rows; `asked` are those that are shown."""

Columns = tuple[list[int], list[int], list[int], list[bool]]
"""By tree where its nodes of a layer begin and end, its width, and whether the drafter has offered anything to it."""


@attrs.frozen(eq=False, slots=False)
class Layer:
    """A layer of some trees that was asked for.

    Attributes:
        nodes: that were drafted from, shape `(frontier,)`.
        trees: in which tree each of them is, likewise.
        depths: how deep, likewise.
        rows: of them in the texts, `NO_ROW` for those that were not recorded, likewise.
        sizes: frontier nodes of each tree, shape `(trees,)`.
        widths: candidates that each tree has asked for, shape `(trees,)`.
        known: whether the drafter has offered anything to a tree, likewise.
        measured: what functions have said of what was offered to each node, shape `(frontier,)` each.
    """

    nodes: IntArray
    trees: IntArray
    depths: IntArray
    rows: IntArray
    sizes: IntArray
    widths: IntArray
    known: NDArray[np.bool_]
    measured: dict[Measure, FloatArray] = attrs.field(init=False, factory=dict)

    @cached_property
    def columns(self) -> Columns:
        """`Columns` of the layer."""
        ends = self.sizes.cumsum()
        return (ends - self.sizes).tolist(), ends.tolist(), self.widths.tolist(), self.known.tolist()


@attrs.frozen(eq=False, slots=False)
class _LayerOfOne(AskedLayer):
    """The part of a layer of some trees that is one tree's.

    Attributes:
        measured_of_all: says of each node of the layer what a function says of it.
        part: which nodes are the tree's.
    """

    measured_of_all: Callable[[Measure], FloatArray]
    part: slice

    def measured(self, measure: Measure) -> FloatArray:
        return self.measured_of_all(measure)[self.part]


class _Asking:
    """What was recorded for trees, while they grow."""

    def __init__(self, growing: GrowingForest, texts: SeveralTexts, positions: IntArray) -> None:
        self.texts, self.positions, self._growing = texts, positions, growing
        self.layers: list[Layer] = []
        self.widest = 0
        self._newest = 0, np.empty(0, dtype=np.int64)  # the first node of a layer, and the rows of all its nodes

    def offered(self, widths: IntArray) -> tuple[ForestCandidates, Taking]:
        """What was recorded for the frontier.

        Args:
            widths: candidates that are wanted of each of its nodes, shape `(frontier,)`.
        """
        nodes, forest, texts = self._growing.frontier, self._growing.forest, self.texts
        holding, places = forest.holding(nodes)
        trees, above = holding.trees.take(places), holding.path_logp.take(places)
        if forest.layer == 0:
            rows = texts.roots[self.positions[trees]]
        else:
            rows = texts.find(self._rows_of(holding.parents.take(places)), holding.tokens.take(places))
        width = min(int(widths.max()), texts.width)
        self.widest = max(self.widest, width)
        tokens, offered = texts.offered(rows, width)
        if (widths < width).any():
            beyond = np.arange(width) >= widths[:, None]
            tokens[beyond], offered[beyond] = padding(tokens.dtype), -np.inf
        self._note(nodes, trees, holding.depths.take(places), rows, widths, offered)
        self._remember(nodes, rows)
        logp: FloatArray = offered.astype(np.float64)
        path_logp = above[:, None] + logp

        def taking(row: IntArray, rank: IntArray) -> tuple[IntArray, FloatArray]:
            flat = row * width + rank
            return tokens_of(tokens.take(flat)), above.take(row) + offered.take(flat)

        def look_up() -> IntArray:
            return tokens_of(tokens)

        return ForestCandidates(nodes.copy(), trees.copy(), logp, path_logp, forest.size, look_up), taking

    def _remember(self, nodes: IntArray, rows: IntArray) -> None:
        newest = self._growing.forest.layers[-1]
        of_layer = np.full(len(newest), NO_ROW)
        if nodes.min() >= newest.first:
            of_layer[nodes - newest.first] = rows
            self._newest = newest.first, of_layer
        else:
            self._newest = len(self._growing.forest), of_layer[:0]

    def _rows_of(self, nodes: IntArray) -> IntArray:
        """The rows of nodes that were drafted from."""
        first, rows = self._newest
        if nodes.min() < first:
            first, rows = 0, np.full(len(self._growing.forest), NO_ROW)
            for layer in self.layers:
                rows[layer.nodes] = layer.rows
        return rows[nodes - first]

    def _note(
        self, nodes: IntArray, trees: IntArray, depths: IntArray, rows: IntArray, widths: IntArray, logp: NDArray[Any]
    ) -> None:
        size = len(self.positions)
        firsts = begins_of(trees)
        of_trees = np.zeros(size, dtype=np.int64)
        of_trees[trees[firsts]] = widths[firsts]
        sizes = np.bincount(trees, minlength=size)
        known = np.zeros(size, dtype=bool)
        known[trees[logp[:, 0] > -np.inf]] = True
        self.layers.append(Layer(nodes, trees, depths, rows, sizes, of_trees, known))


@attrs.frozen(eq=False, slots=False)
class Grown:
    """Trees at some positions of several texts, grown together by one policy.

    Attributes:
        texts: the texts.
        positions: of each tree, rising, shape `(trees,)`.
        forest: the trees as they were drafted.
        layers: that were asked for.
        widest: the most candidates of a node that were looked at.
        kept: which nodes are verified, shape `(nodes,)`.
        selected: whether the policy has selected them.
        faults: how it has broken its contract, by tree; see `check`.
    """

    texts: SeveralTexts
    positions: IntArray
    forest: Forest
    layers: Sequence[Layer]
    widest: int
    kept: NDArray[np.bool_]
    selected: bool
    faults: Mapping[int, PluginError]

    @classmethod
    def at(
        cls,
        growing: GrowingForest,
        texts: SeveralTexts,
        positions: IntArray,
        vocab_size: int,
        drawing: Drawing | None = None,
    ) -> "Grown":
        """Grow trees.

        Args:
            growing: their roots.
            texts: the texts.
            positions: of each tree.
            vocab_size: the target's.
            drawing: gives the laws of a layer to a policy that draws.

        Raises:
            PluginError: if the policy breaks its contract for all of them; the message names it.
            ValueError: if it has been shown what was changed since it was recorded.
        """
        asking = _Asking(growing, texts, positions)
        try:
            while len(growing.frontier):
                widths = growing.widths()
                if len(widths):
                    offered = asking.offered(widths)
                    growing.grow(*offered, None if drawing is None else partial(drawing, asking.layers[-1].rows))
            kept = growing.finish()
        except PluginError:  # what a changed file has led to is not the policy's fault
            if asking.layers:
                rows = np.concatenate([layer.rows for layer in asking.layers])
                texts.check(rows, asking.widest, vocab_size)
            raise
        found = texts, positions, growing.forest, asking.layers, asking.widest, kept
        return cls(*found, growing.selected, dict(growing.faults))

    def cut(self, depth: int) -> "Grown | None":
        """The trees as they are where nothing deeper than so many layers can be used.

        None where that is not simply a part of these: where nodes were selected, layers hold nodes of many depths, or a
        tree has ended with a fault.
        """
        layers = self.forest.layers
        by_depth = ((one.depths == place).all() for place, one in enumerate(layers))
        if self.selected or self.faults or not all(by_depth):
            return None
        own = layers[: depth + 1]
        sizes = sum(np.bincount(layer.trees, minlength=len(self.positions)) for layer in own)
        forest = Forest(own, ints(sizes), self.forest.contexts)
        return attrs.evolve(self, forest=forest, layers=self.layers[:depth], kept=self.kept[: len(forest)])

    @cached_property
    def passes(self) -> IntArray:
        """Draft passes of each tree, shape `(trees,)`."""
        found, passes = np.zeros(len(self.positions), dtype=np.int64), self.texts.passes
        for layer in self.layers:
            firsts = begins_of(layer.trees)
            asked, depth = layer.trees[firsts], layer.depths[firsts]
            known = depth < passes.shape[1]
            found[asked[known]] += passes[self.positions[asked[known]], depth[known]]
        return found

    @cached_property
    def first(self) -> int:
        """The position of the first tree."""
        return int(self.positions[0])

    @cached_property
    def sizes(self) -> IntArray:
        """Nodes of each tree that is verified, shape `(trees,)`."""
        if not self.selected:
            return self.forest.sizes
        return np.bincount(self.forest.trees[self.kept], minlength=len(self.positions))

    @cached_property
    def numbers(self) -> list[tuple[int, int, int]]:
        """Of each tree its nodes that are verified, those that were drafted, and the tokens that its round emits."""
        columns = self.sizes, self.forest.sizes, self.steps
        return [*zip(*(column.tolist() for column in columns), strict=True)]

    @cached_property
    def deepest(self) -> IntArray:
        """The deepest node of each tree, shape `(trees,)`."""
        found = np.zeros(len(self.positions), dtype=np.int64)
        for layer in self.forest.layers[1:]:
            if len(layer) and layer.depths.min() == layer.depths.max():
                found[layer.trees] = np.maximum(found[layer.trees], layer.depths[0])
            else:
                np.maximum.at(found, layer.trees, layer.depths)
        return found

    @cached_property
    def _along(self) -> tuple[NDArray[np.bool_], IntArray]:
        along = np.arange(len(self.positions))  # the node on the text in each tree, as deep as they are looked at
        steps = np.ones(len(self.positions), dtype=np.int64)
        accepted = np.zeros(len(self.forest), dtype=bool)
        accepted[along] = True
        for layer in self.forest.layers[1:]:
            wanted = self.texts.ahead(self.positions[layer.trees], layer.depths)
            found = (layer.tokens == wanted).nonzero()[0]
            found = found[along[layer.trees[found]] == layer.parents[found]]
            nodes = found + layer.first
            found, nodes = found[self.kept[nodes]], nodes[self.kept[nodes]]
            along[layer.trees[found]] = nodes
            steps[layer.trees[found]] += 1
            accepted[nodes] = True
        return accepted, steps

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Which nodes are accepted, the roots among them, shape `(nodes,)`."""
        return self._along[0]

    @property
    def steps(self) -> IntArray:
        """Tokens that a round with each tree emits, shape `(trees,)`."""
        return self._along[1]

    @cached_property
    def outside(self) -> IntArray:
        """Questions of each tree that the texts do not answer, see `TraceDrafter.outside`; shape `(trees,)`."""
        forest, size, width = self.forest, len(self.positions), self.texts.width
        found: IntArray = np.zeros(size, dtype=np.int64)
        cut: list[tuple[IntArray, IntArray]] = []  # nodes of which more was wanted than was kept, and their rows
        for layer in self.layers:
            there = layer.rows != NO_ROW
            if not there.all():
                found += np.bincount(layer.trees[~there], minlength=size)
            if layer.widths.max() > width:
                there &= layer.widths[layer.trees] > width
                there[there] = ~self.texts.whole[layer.rows[there]]
                cut.append((layer.nodes[there], layer.rows[there]))
        if cut:
            nodes, rows = (np.concatenate(each) for each in zip(*cut, strict=True))
            order = rows.argsort(kind="stable")
            nodes, rows = nodes[order], rows[order]
            last = np.full(len(forest), PADDING)
            last[nodes] = tokens_of(self.texts.offered(rows, width)[0][:, -1])
            went_on = forest.tokens == last[forest.parents]
            went_on[: forest.size] = False
            found += np.bincount(forest.trees[went_on], minlength=size)
        return found

    def rows(self, trees: IntArray) -> IntArray:
        """The rows that were looked at for some of the trees, `NO_ROW` among them, shape `(rows,)`."""
        if not self.layers:
            return NO_ROWS
        wanted = np.zeros(len(self.positions), dtype=bool)
        wanted[trees] = True
        return np.concatenate([layer.rows[wanted[layer.trees]] for layer in self.layers])

    def check(self, trees: IntArray, vocab_size: int) -> None:
        """Refuse what was looked at for some of the trees, if it was changed, and faults in these.

        Raises:
            ValueError: if it was.
            PluginError: if the policy has broken its contract in one of them.
        """
        self.texts.check(self.rows(trees), self.widest, vocab_size)
        for tree in trees.tolist():
            if tree in self.faults:
                raise self.faults[tree]

    def parts(
        self, tree: int, costs: Costs, context: int, untold: Untold, timed: bool, chained: bool
    ) -> dict[str, float]:
        """What the parts of a round with a tree would take; `untold`, `timed` and `chained` are those of `priced`."""
        nodes, _, new = self.numbers[tree]
        return priced(costs, self._asked_sizes[tree], nodes, context, new, untold, timed, chained)

    @cached_property
    def _asked_sizes(self) -> list[list[tuple[int, int]]]:
        """By tree, the frontier nodes and the width of each layer that it has asked for, and of no other."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.positions]
        for layer in self.layers:
            (trees,) = layer.sizes.nonzero()
            sizes = zip(layer.sizes[trees].tolist(), layer.widths[trees].tolist(), strict=True)
            for tree, size in zip(trees.tolist(), sizes, strict=True):
                found[tree].append(size)
        return found

    @cached_property
    def _drafted(self) -> TreesApart:
        return TreesApart(self.forest)

    @cached_property
    def _verified(self) -> TreesApart:
        return TreesApart(self.forest, self.kept) if self.selected else self._drafted

    def asked(self, tree: int) -> Iterator[AskedLayer]:
        """The layers of a tree of which the drafter knew anything."""
        for rows, measured, (begins, ends, widths, known) in self._askable:
            if known[tree]:
                part, width = slice(begins[tree], ends[tree]), widths[tree]
                look_up = partial(_logp, self.texts, rows, min(width, self.texts.width), part)
                yield _LayerOfOne(part.stop - part.start, width, look_up, measured, part)

    @cached_property
    def _askable(self) -> list[tuple[IntArray, Callable[[Measure], FloatArray], Columns]]:
        """Of each layer its rows, how its nodes are measured, and its columns."""
        return [(layer.rows, partial(_measured, self.texts, layer), layer.columns) for layer in self.layers]

    def round(self, tree: int, coming: IntArray, spans: tuple[Span, ...], context: int) -> Round:
        """The round with a tree; `coming` are the tokens behind its root, to the end of the text."""
        verified = self._verified.tree(tree)
        path = verified.follow(coming[:-1])
        return Round(
            tree=verified,
            path=read_only(path),
            tokens=read_only(coming[: len(path)]),
            drafted=self._drafted.tree(tree) if self.sizes[tree] < self.forest.sizes[tree] else None,
            draft_passes=int(self.passes[tree]),
            spans=spans,
            context=context,
        )


def _measured(texts: SeveralTexts, layer: Layer, measure: Measure) -> FloatArray:
    """What a function says of what was offered to each node of a layer, shape `(frontier,)`."""
    found = layer.measured.get(measure)
    if found is None:
        widths = layer.widths[layer.trees]
        logp = _logp(texts, layer.rows, min(int(widths.max()), texts.width), slice(None))
        logp[np.arange(logp.shape[1]) >= widths[:, None]] = -np.inf
        with np.errstate(all="ignore"):  # of rows that were changed, which are refused where a round has them
            found = layer.measured[measure] = read_only(measure(logp))
    return found


def _logp(texts: SeveralTexts, rows: IntArray, width: int, part: slice) -> FloatArray:
    logp: FloatArray = texts.offered(rows[part], width)[1].astype(np.float64)
    return logp
