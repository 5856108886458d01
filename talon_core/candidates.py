"""What a drafter offers at the frontier: for each node, its most likely next tokens."""

from collections.abc import Callable, Sequence
from math import log
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.choices import Choices
from talon_core.drawn import Drawn, without
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import floats, highest, ints

LOWEST = float(np.finfo(np.float64).min)  # the least score that is not minus infinity


Law = Callable[[int], FloatArray]
"""`law(row) -> (vocab,)`, float64: a handle by which the whole law at a frontier row can be had."""


@attrs.frozen
class NoLaws:
    """The handle of a drafter that has no whole laws."""

    def __call__(self, row: int) -> FloatArray:
        raise ValueError(
            f"these candidates carry no full law (asked for frontier row {row}); a policy that draws or asks for laws "
            "needs a drafter that gives them"
        )


@attrs.frozen
class LawRows:
    """The handle of laws that are there already; it can be sent to another process.

    Attributes:
        rows: shape `(frontier, vocab)`, float64.
    """

    rows: FloatArray = attrs.field(converter=floats, eq=attrs.cmp_using(eq=np.array_equal))

    def __call__(self, row: int) -> FloatArray:
        law: FloatArray = self.rows[row]
        return law


@attrs.frozen
class _Scores:
    """The handle of laws that are the softmax of scores, computed one by one."""

    scores: NDArray[Any] = attrs.field(eq=attrs.cmp_using(eq=np.array_equal))

    def __call__(self, row: int) -> FloatArray:
        scores = self.scores[row].astype(np.float64)
        highest = scores.max()
        if not np.isfinite(highest):
            return NoLaws()(row)
        law: FloatArray = np.exp(scores - highest)
        law /= law.sum()
        return law


_same_array = attrs.cmp_using(eq=np.array_equal)


@attrs.frozen(unsafe_hash=False)
class Candidates:
    """The best next tokens of each frontier node, in one rectangle; row `i` belongs to tree node `frontier[i]`.

    The rectangle is as wide as the policy asked for, or narrower if the drafter knows no more. Rows are sorted by
    falling `logp`. A drafter that knows fewer continuations of one node than of another pads its row with token -1
    and `logp` minus infinity; `best` never returns a padded entry, and a policy must not choose one.

    Probabilities are the drafter's own, over all that it can draft: with a reduced draft vocabulary they sum to 1 over
    that one, every other token has probability 0, and nothing tells what the target gives to those. So an entropy that
    is computed from here is that of the draft vocabulary. A row of `logp` is not rescaled to what is offered of it.

    Candidates are data: two are equal if their arrays are, and `detached` ones can be pickled.

    Attributes:
        frontier: the tree nodes that were drafted from, shape `(frontier,)`, int64.
        tokens: token ids, shape `(frontier, width)`, int64.
        logp: natural log-probability of the token given the path to its parent, shape `(frontier, width)`, float64.
        path_logp: natural log-probability of the path from the root, the token included, same shape, float64.
        law: `law(row)` is the drafter's whole law at frontier row `row`, shape `(vocab,)`, float64, summing to 1;
            computed on demand. Raises ValueError where the drafter has none.
    """

    frontier: IntArray = attrs.field(eq=_same_array)
    tokens: IntArray = attrs.field(eq=_same_array)
    logp: FloatArray = attrs.field(eq=_same_array)
    path_logp: FloatArray = attrs.field(eq=_same_array)
    law: Law = attrs.field(factory=NoLaws, eq=False)

    @classmethod
    def from_logits(cls, tree: TokenTree, frontier: IntArray, logits: Any, width: int) -> "Candidates":
        """The best next tokens by a drafter's scores; a row's softmax is its law.

        Args:
            tree: as in `Frontier`, and so are `frontier` (its nodes) and `width`.
            frontier: shape `(frontier,)`.
            logits: any floating-point numbers that NumPy can read, shape `(frontier, vocab)`, a column for each of the
                target's tokens; minus infinity for a token that cannot come. A row that is all minus infinity is one
                that nothing is known about. Kept as they are: a law is computed when it is asked for.
            width: most candidates a node.

        Raises:
            ValueError: if the logits have another shape, or hold NaN or plus infinity.
        """
        scores = np.asarray(logits)
        if scores.dtype == np.float16:
            scores = scores.astype(np.float32)
        if scores.ndim != 2 or len(scores) != len(frontier) or not scores.shape[1] or scores.dtype.kind != "f":
            raise ValueError(
                f"logits have shape {scores.shape} and type {scores.dtype}; they are floating-point numbers of shape "
                f"({len(frontier)}, vocab), one row for each frontier node"
            )
        highest = scores.max(axis=1, keepdims=True).astype(np.float64)  # (frontier, 1); NaN where a row holds one
        if not (highest < np.inf).all():
            raise ValueError("logits hold NaN or infinity; a token that cannot come has minus infinity")
        width = max(1, min(width, scores.shape[1]))
        known = np.isfinite(highest)
        highest = np.where(known, highest, 0.0)
        weights = np.exp(scores - highest.astype(scores.dtype))  # relative to the best, so that none overflows
        total = weights.sum(axis=1, keepdims=True, dtype=np.float64)
        norm = highest + np.log(np.where(known, total, 1.0))
        best = np.argpartition(-scores, width - 1, axis=1)[:, :width]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        logp = np.take_along_axis(scores, best, axis=1).astype(np.float64) - norm
        tokens = np.where(np.isfinite(logp), best, -1)
        return cls(frontier, tokens, logp, tree.path_logp[frontier][:, None] + logp, _Scores(scores))

    @classmethod
    def from_rows(
        cls, tree: TokenTree, frontier: IntArray, rows: Sequence[Sequence[tuple[int, float]]], law: Law
    ) -> "Candidates":
        """What was found for each node: tokens with their probabilities.

        Args:
            tree: as in `Frontier`, and so is `frontier` (its nodes).
            frontier: shape `(frontier,)`.
            rows: for each node its tokens and probabilities, more than 0, best first; none where nothing is known.
            law: the handle of their whole laws.
        """
        width = max(map(len, rows), default=0) or 1
        tokens = np.full((len(rows), width), -1, dtype=np.int64)
        logp = np.full((len(rows), width), -np.inf)
        for row, offered in enumerate(rows):
            if offered:
                tokens[row, : len(offered)] = [token for token, _ in offered]
                logp[row, : len(offered)] = [min(log(prob), 0.0) for _, prob in offered]
        return cls(frontier, tokens, logp, tree.path_logp[frontier][:, None] + logp, law)

    @classmethod
    def unknown(cls, frontier: IntArray) -> "Candidates":
        """Rows that hold padding alone: the drafter knows nothing here."""
        shape = (len(frontier), 1)
        impossible = np.full(shape, -np.inf)
        return cls(frontier, np.full(shape, -1, dtype=np.int64), impossible, impossible)

    def among(self, frontier: IntArray) -> "Candidates":
        """The same rows among those of further nodes, about which nothing is known.

        Args:
            frontier: all nodes, those of this one's own among them, shape `(nodes,)`.
        """
        if np.array_equal(frontier, self.frontier):
            return self
        rows = {node: row for row, node in enumerate(self.frontier.tolist())}
        nodes = frontier.tolist()
        at = np.array([place for place, node in enumerate(nodes) if node in rows], dtype=np.int64)
        own = np.array([rows[node] for node in nodes if node in rows], dtype=np.int64)
        shape = len(nodes), max(self.width, 1)
        tokens, logp, path_logp = np.full(shape, -1, dtype=np.int64), np.full(shape, -np.inf), np.full(shape, -np.inf)
        tokens[at], logp[at], path_logp[at] = self.tokens[own], self.logp[own], self.path_logp[own]

        def law(row: int) -> FloatArray:
            if nodes[row] not in rows:
                raise ValueError(f"nothing is known after node {nodes[row]}, so that there is no law to draw from")
            return self.law(rows[nodes[row]])

        return Candidates(frontier, tokens, logp, path_logp, law)

    def copied(self) -> "Candidates":
        """The same candidates as an object of its own: whatever is done to it, these stay as they are."""
        arrays = self.frontier.copy(), self.tokens.copy(), self.logp.copy(), self.path_logp.copy()
        for array in arrays:
            array.setflags(write=False)
        return Candidates(*arrays, self.law)

    def detached(self, *, laws: bool = False) -> "Candidates":
        """The same candidates as arrays alone, whatever the drafter does next; they can be saved and sent elsewhere.

        Args:
            laws: compute the whole law of each row now, shape `(frontier, vocab)` in all; otherwise none can be had.

        Raises:
            ValueError: with `laws`, if the drafter has none.
        """
        law: Law = LawRows(np.stack([self.law(row) for row in range(len(self.frontier))])) if laws else NoLaws()
        arrays = ints(self.frontier), ints(self.tokens), floats(self.logp), floats(self.path_logp)
        return Candidates(*arrays, law)

    @property
    def width(self) -> int:
        """Candidates per frontier node, padding included."""
        return int(self.tokens.shape[1])

    def parents(self, flat: IntArray) -> IntArray:
        """The tree nodes under which the candidates `flat` (indices into the flattened rectangle) would stand."""
        return self.frontier.take(flat // self.width)

    def highest(self, score: FloatArray | None = None) -> float:
        """The best score of all.

        Args:
            score: what is looked at, shape `(frontier, width)`; `path_logp` by default.
        """
        looked_at = self.path_logp if score is None else score
        return float(looked_at.item(looked_at.argmax()))  # of so few numbers sooner found than by `max`

    def best(self, count: int, *, score: FloatArray | None = None, at_least: float = -np.inf) -> IntArray:
        """Flat indices of the best candidates, best first; ties go to the lower index.

        Args:
            count: how many at most.
            score: what to rank by, shape `(frontier, width)`; `path_logp` by default. Minus infinity rules a candidate
                out.
            at_least: only candidates whose score is at least this, a natural log-probability.

        Returns:
            Indices into the flattened `(frontier, width)` rectangle, shape `(chosen,)`, `chosen <= count`, int64.
        """
        if count == 1 and score is None and self.path_logp.size:  # of a chain
            first = self.path_logp.argmax()  # where there is a NaN, of that
            if self.path_logp.item(first) >= max(at_least, LOWEST):
                return np.array([first], dtype=np.int64)
        ranked = (self.path_logp if score is None else score).ravel()
        good = ranked >= max(at_least, LOWEST)
        if score is not None:  # where there is none, padding has minus infinity
            good &= self.tokens.ravel() >= 0
        (found,) = good.nonzero()
        return found[highest(ranked[found], count)]

    def draw(
        self,
        choices: Choices,
        row: int,
        count: int = 1,
        *,
        law: FloatArray | None = None,
        replacement: bool = False,
        logp: FloatArray | None = None,
    ) -> Drawn:
        """Draw children for one frontier node; for `Growth.drawn`.

        Args:
            choices: the policy's randomness.
            row: the frontier row.
            count: how many draws, at least 1; without replacement they end where no other token can come out.
            law: what to draw from, shape `(vocab,)`, float64, summing to 1; the drafter's whole law by default.
            replacement: draw each from the whole law, independently.
            logp: see `Drawn`.

        Raises:
            ValueError: if nothing can come out.
        """
        law = self.law(row) if law is None else law
        tokens: list[int] = []
        rest = law
        while len(tokens) < count:
            if tokens and not replacement:
                rest = without(rest, tokens[-1])
            if not rest.any():
                break
            tokens.append(choices.pick(rest))
        return Drawn(tokens, law, replacement, logp)
