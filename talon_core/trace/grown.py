"""Trees at some positions of several texts, which grow together."""

from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.costs import Costs
from talon_core.engine.growing_forest import GrowingForest, Taking
from talon_core.forest import Forest, ForestCandidates
from talon_core.rounds import Round, Span
from talon_core.trace.columns import NO_ROW, padding, tokens_of
from talon_core.trace.prices import behind, priced
from talon_core.trace.several import PADDING, SeveralTexts
from talon_core.tree import FloatArray, IntArray, read_only


@attrs.frozen(eq=False)
class Layer:
    """A layer of some trees that was asked for.

    Attributes:
        trees: in which tree each frontier node is, shape `(frontier,)`.
        rows: of these nodes in the texts, `NO_ROW` for those that were not recorded, shape `(frontier,)`.
        sizes: frontier nodes of each tree, shape `(trees,)`.
        widths: candidates that each tree has asked for, shape `(trees,)`.
    """

    trees: IntArray
    rows: IntArray
    sizes: IntArray
    widths: IntArray


class Grown:
    """Trees at some positions of several texts, grown together by one policy.

    Args:
        growing: their roots.
        texts: the texts.
        positions: of each tree, rising, shape `(trees,)`.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
    """

    def __init__(self, growing: GrowingForest, texts: SeveralTexts, positions: IntArray) -> None:
        self.texts, self.positions, self._growing = texts, positions, growing
        self.layers: list[Layer] = []
        self.widest = 0
        self.passes: IntArray = np.zeros(len(positions), dtype=np.int64)
        self._missing = np.zeros(len(positions), dtype=np.int64)
        self._cut: list[tuple[IntArray, IntArray]] = []  # nodes, and their rows
        self._known: list[tuple[IntArray, IntArray]] = []  # nodes that were drafted from, and their rows
        self._newest = 0, np.empty(0, dtype=np.int64)  # the first node of a layer, and the rows of all its nodes

    def grow(self) -> None:
        """Ask the policy, layer by layer."""
        growing = self._growing
        while len(growing.frontier):
            widths = growing.widths()
            if len(widths):
                growing.grow(*self._offered(widths))
        self.kept = growing.finish()
        for fault in growing.faults.values():
            raise fault

    @property
    def forest(self) -> Forest:
        """The trees as they were drafted."""
        return self._growing.forest

    @property
    def selected(self) -> bool:
        """Whether the policy has selected nodes of what was drafted."""
        return self._growing.selected

    def _offered(self, widths: IntArray) -> tuple[ForestCandidates, Taking]:
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
        self._remember(nodes, rows)
        self._note(trees, nodes, rows, widths, holding.depths.take(places))
        width = min(int(widths.max()), texts.width)
        self.widest = max(self.widest, width)
        tokens, offered = texts.offered(rows, width)
        if (widths < width).any():
            beyond = np.arange(width) >= widths[:, None]
            tokens[beyond], offered[beyond] = padding(tokens.dtype), -np.inf
        logp: FloatArray = offered.astype(np.float64)
        path_logp = above[:, None] + logp

        def taking(row: IntArray, rank: IntArray) -> tuple[IntArray, FloatArray]:
            flat = row * width + rank
            return tokens_of(tokens.take(flat)), above.take(row) + offered.take(flat)

        def look_up() -> IntArray:
            return tokens_of(tokens)

        return ForestCandidates(nodes.copy(), trees, logp, path_logp, forest.size, look_up), taking

    def _remember(self, nodes: IntArray, rows: IntArray) -> None:
        self._known.append((nodes, rows))
        newest = self.forest.layers[-1]
        of_layer = np.full(len(newest), NO_ROW)
        if nodes.min() >= newest.first:
            of_layer[nodes - newest.first] = rows
            self._newest = newest.first, of_layer
        else:
            self._newest = len(self.forest), of_layer[:0]

    def _rows_of(self, nodes: IntArray) -> IntArray:
        """The rows of nodes that were drafted from."""
        first, rows = self._newest
        if nodes.min() < first:
            first, rows = 0, np.full(len(self.forest), NO_ROW)
            for known, own in self._known:
                rows[known] = own
        return rows[nodes - first]

    def _note(self, trees: IntArray, nodes: IntArray, rows: IntArray, widths: IntArray, depths: IntArray) -> None:
        size, passes = len(self.positions), self.texts.passes
        there = rows != NO_ROW
        if not there.all():
            self._missing += np.bincount(trees[~there], minlength=size)
        cut = there & (widths > self.texts.width)
        if cut.any():
            cut[cut] = ~self.texts.whole[rows[cut]]
            self._cut.append((nodes[cut], rows[cut]))
        (firsts,) = np.diff(trees, prepend=-1).nonzero()
        asked, layer = trees[firsts], depths[firsts]
        known = layer < passes.shape[1]
        self.passes[asked[known]] += passes[self.positions[asked[known]], layer[known]]
        of_trees = np.zeros(size, dtype=np.int64)
        of_trees[asked] = widths[firsts]
        self.layers.append(Layer(trees, rows, np.bincount(trees, minlength=size), of_trees))

    @cached_property
    def sizes(self) -> IntArray:
        """Nodes of each tree that is verified, shape `(trees,)`."""
        if not self.selected:
            return self.forest.sizes
        return np.bincount(self.forest.trees[self.kept], minlength=len(self.positions))

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
    def steps(self) -> IntArray:
        """Tokens that a round with each tree emits, shape `(trees,)`."""
        along = np.arange(len(self.positions))  # the node on the text in each tree, as deep as they are looked at
        steps = np.ones(len(self.positions), dtype=np.int64)
        for layer in self.forest.layers[1:]:
            wanted = self.texts.ahead(self.positions[layer.trees], layer.depths)
            found = (layer.tokens == wanted).nonzero()[0]
            found = found[along[layer.trees[found]] == layer.parents[found]]
            nodes = found + layer.first
            found, nodes = found[self.kept[nodes]], nodes[self.kept[nodes]]
            along[layer.trees[found]] = nodes
            steps[layer.trees[found]] += 1
        return steps

    @cached_property
    def outside(self) -> IntArray:
        """Questions of each tree that the texts do not answer, see `TraceDrafter.outside`; shape `(trees,)`."""
        forest, found = self.forest, self._missing
        if self._cut:
            nodes, rows = (np.concatenate(each) for each in zip(*self._cut, strict=True))
            order = rows.argsort(kind="stable")
            nodes, rows = nodes[order], rows[order]
            last = np.full(len(forest), PADDING)
            last[nodes] = tokens_of(self.texts.offered(rows, self.texts.width)[0][:, -1])
            went_on = forest.tokens == last[forest.parents]
            went_on[: forest.size] = False
            found = found + np.bincount(forest.trees[went_on], minlength=forest.size)
        return found

    def check(self, trees: NDArray[np.bool_], vocab_size: int) -> None:
        """Refuse what was looked at for some of the trees, if it was changed.

        Raises:
            ValueError: if it was.
        """
        if self.layers:
            rows = np.concatenate([layer.rows[trees[layer.trees]] for layer in self.layers])
            self.texts.check(rows, self.widest, vocab_size)

    def drafts(self, tree: int) -> bool:
        """Whether the drafter is asked for a tree."""
        return any(one.sizes[tree] for one in self.layers)

    def spans(self, tree: int, costs: Costs, context: int, untold: int) -> tuple[Span, ...]:
        """What the parts of a round with a tree would take; `untold` is that of `priced`."""
        layers = [(int(one.sizes[tree]), int(one.widths[tree])) for one in self.layers if one.sizes[tree]]
        parts = priced(costs, layers, int(self.sizes[tree]), context, int(self.steps[tree]), untold)
        return tuple(behind(parts, 0.0))

    def round(self, tree: int, coming: IntArray, spans: tuple[Span, ...], context: int) -> Round:
        """The round with a tree; `coming` are the tokens behind its root, to the end of the text."""
        verified = self.forest.tree(tree, self.kept)
        path = verified.follow(coming[:-1])
        return Round(
            tree=verified,
            path=read_only(path),
            tokens=read_only(coming[: len(path)]),
            drafted=self.forest.tree(tree) if self.selected else None,
            draft_passes=int(self.passes[tree]),
            spans=spans,
            context=context,
        )
