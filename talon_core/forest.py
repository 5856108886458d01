"""Several draft trees that grow together, and what a drafter offers them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import LOWEST
from talon_core.tree import FloatArray, IntArray, TokenTree, tree_of
from talon_core.tree_arrays import among_highest, begins_of, by_number, floats, highest_of_each, ints

Count = int | IntArray
"""A number for all trees of a forest, or one for each, shape `(trees,)`."""

Level = float | FloatArray
"""A log-probability for all trees of a forest, or one for each, shape `(trees,)`."""


@attrs.frozen(eq=False)
class ForestNodes:
    """Some nodes of a forest that stand behind each other; see `Forest` for what its arrays hold.

    Attributes:
        first: the index of the first of them in the forest.
    """

    tokens: IntArray
    parents: IntArray
    path_logp: FloatArray
    depths: IntArray
    trees: IntArray
    first: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def copied(self) -> "ForestNodes":
        """The same nodes as an object of its own."""
        return ForestNodes(**{name: getattr(self, name).view() for name in COLUMNS}, first=self.first)


COLUMNS = ("tokens", "parents", "path_logp", "depths", "trees")


@attrs.frozen(eq=False)
class Forest:
    """Draft trees that have had as many layers each, in flat arrays, layer by layer. Read only.

    The roots come first: that of tree `i` is node `i`. The nodes of a tree stand in the order that they have in its
    `TokenTree`, with those of other trees between them. A tree whose drafting has ended stays as it is.

    Attributes:
        layers: the roots, and what has joined in each layer that was drafted.
        sizes: nodes of each tree, the root included, shape `(trees,)`, int64.
        contexts: committed tokens of each text, the root included, shape `(trees,)`, int64.
    """

    layers: tuple[ForestNodes, ...]
    sizes: IntArray
    contexts: IntArray

    @classmethod
    def roots(cls, tokens: IntArray, contexts: IntArray | None = None) -> "Forest":
        """The trees that a round starts from.

        Args:
            tokens: the last committed ones, shape `(trees,)`.
            contexts: committed tokens of each text, likewise; by default one each.
        """
        size = len(tokens)
        zeros, none = np.zeros(size, dtype=np.int64), np.full(size, -1)
        roots = _nodes(tokens, none, np.zeros(size), zeros, np.arange(size), 0)
        return cls((roots,), ints(np.ones(size)), ints(np.ones(size) if contexts is None else contexts))

    def grown(self, tokens: IntArray, parents: IntArray, path_logp: FloatArray) -> "Forest":
        """The forest with a layer more; the arrays have shape `(added,)`, and parents are nodes that are there."""
        holding, places = self.holding(parents)
        trees, depths = holding.trees.take(places), holding.depths.take(places) + 1
        layer = _nodes(tokens, parents, path_logp, depths, trees, len(self))
        sizes = ints(self.sizes + np.bincount(trees, minlength=self.size))
        return Forest((*self.layers, layer), sizes, self.contexts)

    def __len__(self) -> int:
        return self.layers[-1].first + len(self.layers[-1])

    @property
    def size(self) -> int:
        """How many trees there are."""
        return len(self.layers[0])

    @property
    def layer(self) -> int:
        """Layers that have been drafted, the same number for each tree that has not ended."""
        return len(self.layers) - 1

    @cached_property
    def nodes(self) -> ForestNodes:
        """All nodes."""
        whole: Any = {name: np.concatenate([getattr(one, name) for one in self.layers]) for name in COLUMNS}
        return ForestNodes(**whole)

    @property
    def tokens(self) -> IntArray:
        """Token ids, shape `(nodes,)`, int64."""
        return self.nodes.tokens

    @property
    def parents(self) -> IntArray:
        """Index of each node's parent, shape `(nodes,)`, int64; -1 for roots."""
        return self.nodes.parents

    @property
    def path_logp(self) -> FloatArray:
        """The drafter's natural log-probability of the path from the root, shape `(nodes,)`, float64."""
        return self.nodes.path_logp

    @property
    def depths(self) -> IntArray:
        """Distance from the root, shape `(nodes,)`, int64."""
        return self.nodes.depths

    @property
    def trees(self) -> IntArray:
        """In which tree each node is, shape `(nodes,)`, int64."""
        return self.nodes.trees

    def holding(self, nodes: IntArray) -> tuple[ForestNodes, IntArray]:
        """Where some nodes are found: in the newest layer, if that has them all, and their places there."""
        newest = self.layers[-1]
        if len(nodes) and nodes.min() >= newest.first:
            return newest, nodes - newest.first
        return self.nodes, nodes

    def copied(self) -> "Forest":
        """The same forest as an object of its own: whatever is done to it, this one stays as it is."""
        return Forest(tuple(layer.copied() for layer in self.layers), self.sizes.view(), self.contexts.view())

    def best(self, count: Count) -> IntArray:
        """The `count` most likely nodes of each tree, see `TokenTree.best`; rising, shape `(kept,)`, int64.

        Args:
            count: at least 1.
        """
        score, above = self.path_logp, np.where(self.parents < 0, np.arange(len(self)), self.parents)
        while (score > score[above]).any():
            score = np.minimum(score, score[above])
        order = by_number(self.trees, self.size)
        if isinstance(count, np.ndarray):
            kept = order[highest_of_each(score[order], self.sizes, count)]
        else:
            kept = order[among_highest(score[order], self.sizes, count)]
        kept.sort()
        return kept

    def tree(self, number: int, kept: NDArray[np.bool_] | None = None) -> TokenTree:
        """One of the trees.

        Args:
            number: which.
            kept: which nodes of the forest are to be in it, shape `(nodes,)`, bool; by default all. With a node its
                parent is kept.
        """
        own = self.trees == number
        if kept is not None:
            own &= kept
        (nodes,) = own.nonzero()
        parents = np.searchsorted(nodes, self.parents[nodes])
        parents[0] = -1
        return TokenTree(self.tokens[nodes], parents, self.path_logp[nodes])


class TreesApart:
    """The trees of a forest, each by itself.

    Args:
        forest: of which.
        kept: which of its nodes are to be in them, as for `Forest.tree`.
    """

    def __init__(self, forest: Forest, kept: NDArray[np.bool_] | None = None) -> None:
        trees = forest.trees if kept is None else forest.trees[kept]
        order = by_number(trees, forest.size)
        nodes = order if kept is None else kept.nonzero()[0][order]
        ends = np.cumsum(np.bincount(trees, minlength=forest.size))
        firsts = np.concatenate([[0], ends[:-1]])
        places = np.full(len(forest) + 1, -1)  # the last one is that above a root
        places[nodes] = np.arange(len(nodes)) - firsts[trees[order]]
        columns = forest.tokens[nodes], places[forest.parents[nodes]], forest.depths[nodes]
        self._tokens, self._parents, self._depths = map(ints, columns)
        self._path_logp = floats(forest.path_logp[nodes])
        self._bounds = [*zip(firsts.tolist(), ends.tolist(), strict=True)]

    def tree(self, number: int) -> TokenTree:
        """One of them."""
        own = slice(*self._bounds[number])
        return tree_of(self._tokens[own], self._parents[own], self._path_logp[own], self._depths[own])


def _nodes(
    tokens: IntArray, parents: IntArray, path_logp: FloatArray, depths: IntArray, trees: IntArray, first: int
) -> ForestNodes:
    return ForestNodes(ints(tokens), ints(parents), floats(path_logp), ints(depths), ints(trees), first)


@attrs.frozen(eq=False)
class ForestCandidates:
    """The best next tokens of the frontier nodes of a forest, in one rectangle, as `Candidates` has those of one tree.

    Row `i` belongs to node `frontier[i]`. The rows of a tree stand together, in the order of their tree's frontier, and
    trees in theirs. Where a tree has asked for fewer candidates than another one, its rows are padded.

    Attributes:
        frontier: the nodes that were drafted from, shape `(frontier,)`, int64.
        trees: in which tree each of them is, rising, shape `(frontier,)`, int64.
        logp: natural log-probability of the token given the path to its parent, minus infinity for padding, shape
            `(frontier, width)`, float64.
        path_logp: natural log-probability of the path from the root, the token included, same shape, float64.
        size: trees of the forest, those without rows among them.
        look_up: gives `tokens`.
    """

    frontier: IntArray
    trees: IntArray
    logp: FloatArray
    path_logp: FloatArray
    size: int
    look_up: Callable[[], IntArray]

    @cached_property
    def tokens(self) -> IntArray:
        """Token ids, -1 for padding, shape `(frontier, width)`, int64; looked up when they are asked for."""
        return self.look_up()

    @property
    def width(self) -> int:
        """Candidates per frontier node, padding included."""
        return int(self.logp.shape[1])

    def of_rows(self, rows: NDArray[np.bool_]) -> "ForestCandidates":
        """Those of some frontier nodes alone, of an equally wide rectangle.

        Args:
            rows: which, shape `(frontier,)`, bool; of a tree all or none.
        """
        if rows.all():
            return self
        told = self.frontier[rows], self.trees[rows], self.logp[rows], self.path_logp[rows]
        return ForestCandidates(*told, self.size, lambda: self.tokens[rows])

    def trees_of(self, flat: IntArray) -> IntArray:
        """In which trees the candidates `flat` (indices into the flattened rectangle) would stand."""
        return self.trees.take(flat // self.width)

    def highest(self, score: FloatArray | None = None) -> FloatArray:
        """The best score of each tree, minus infinity where it has no rows, shape `(trees,)`.

        Args:
            score: what is looked at, shape `(frontier, width)`; `path_logp` by default.
        """
        found = np.full(self.size, -np.inf)
        if len(self.trees):
            looked_at = self.path_logp if score is None else score
            firsts = begins_of(self.trees)
            found[self.trees[firsts]] = np.maximum.reduceat(looked_at.ravel(), firsts * looked_at.shape[1])
        return found

    def best(self, count: Count, *, score: FloatArray | None = None, at_least: Level = -np.inf) -> IntArray:
        """Flat indices of the best candidates of each tree, tree by tree, as `Candidates.best` finds them.

        Args:
            count: how many at most.
            score: what to rank by, shape `(frontier, width)`; `path_logp` by default.
            at_least: only candidates whose score is at least this, a natural log-probability.

        Returns:
            Indices into the flattened `(frontier, width)` rectangle, shape `(chosen,)`, int64.
        """
        ranked = self.path_logp if score is None else score
        least = np.maximum(at_least, LOWEST)
        good = ranked >= (least if least.ndim == 0 else least[self.trees][:, None])
        if score is not None:  # where there is none, padding has minus infinity
            good &= self.logp > -np.inf
        found, held = self._by_tree(good)
        counts = np.broadcast_to(np.asarray(count, dtype=np.int64), (self.size,))
        return found[highest_of_each(ranked.ravel()[found], held, counts)]

    def among_best(self, count: int) -> IntArray:
        """What `best` finds, in the order of the rectangle, which takes less time.

        Args:
            count: of each tree at most, at least 1.

        Returns:
            Indices into the flattened `(frontier, width)` rectangle, rising, shape `(chosen,)`, int64.
        """
        found, held = self._by_tree(self.path_logp >= LOWEST)
        return found[among_highest(self.path_logp.ravel()[found], held, count)]

    def _by_tree(self, good: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
        """Flat indices of some candidates, and how many each tree has."""
        held = np.bincount(self.trees, weights=good.sum(axis=1), minlength=self.size)
        return good.ravel().nonzero()[0], held.astype(np.int64)
