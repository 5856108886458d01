"""A target and a drafter given by tables: tiny, in float64, and exact, for whoever enumerates every outcome."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.candidates import Candidates, LawRows
from talon_core.drafter import Committed, Drafter, Frontier, Proposed
from talon_core.target import (
    ALL_WALKED,
    NOT_GREEDY,
    NOTHING_DRAWN,
    Further,
    NodeDraws,
    NodeOutputs,
    Target,
    Verified,
    check_open,
)
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import floats

if TYPE_CHECKING:
    from torch import Tensor, device


class TableTarget(Target):
    """A target whose next-token logits depend on the last few tokens through a table. They are arrays, without torch.

    Args:
        logits: shape `(vocab,) * (order + 1)`, float64: `logits[a, b]` are the scores after the tokens `a, b` for
            order 2. Shorter contexts are filled with token 0 on the left. Minus infinity forbids a token.
        context_length: most tokens of prompt and output together; None for no limit.

    Raises:
        ValueError: if the axes differ in length.
    """

    def __init__(self, logits: FloatArray, context_length: int | None = None) -> None:
        self.logits = np.asarray(logits, dtype=np.float64)
        if len(set(self.logits.shape)) != 1:
            raise ValueError(f"a table of logits needs axes of one length, the vocabulary's; got {self.logits.shape}")
        self.vocab_size = self.logits.shape[0]
        self.order = self.logits.ndim - 1
        self.context_length = context_length
        self._prefixes: dict[int, list[int]] = {}
        self._trees: Mapping[int, TokenTree] = {}

    @cached_property
    def device(self) -> "device":  # type: ignore[override]  # torch is imported when it is asked for
        """The CPU."""
        import torch

        return torch.device("cpu")

    def after(self, prefix: Sequence[int]) -> FloatArray:
        """Logits of the token after `prefix`, shape `(vocab,)`, float64."""
        last = [int(token) for token in prefix[max(len(prefix) - self.order, 0) :]]
        logits: FloatArray = self.logits[(*[0] * (self.order - len(last)), *last)]
        return logits

    def open(self, slot: int, room: int) -> None:
        self._prefixes[slot] = []

    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        self._prefixes[slot] = self._prefix(source)[:length]
        return len(self._prefixes[slot])

    def close(self, slot: int) -> None:
        self._prefix(slot)
        del self._prefixes[slot]

    def _prefix(self, slot: int) -> list[int]:
        check_open([slot], self._prefixes)
        return self._prefixes[slot]

    def read(self, parts: Mapping[int, IntArray]) -> Mapping[int, "Tensor | None"]:
        for slot, tokens in parts.items():
            self._prefix(slot).extend(tokens.tolist())
        return dict.fromkeys(parts)

    def verify(
        self,
        trees: Mapping[int, TokenTree],
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        further: Further | None = None,
    ) -> Verified:
        self._trees = trees
        return Verified({slot: NodeOutputs(self._logits(self._prefix(slot), tree)) for slot, tree in trees.items()})

    def _logits(self, prefix: list[int], tree: TokenTree) -> FloatArray:
        last = prefix[max(len(prefix) - self.order, 0) :]  # no more is looked at
        texts: list[list[int]] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            texts.append([*(texts[parent] if parent >= 0 else last), token])
        return np.array([self.after(text) for text in texts])

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        for slot, path in paths.items():
            self._prefix(slot).extend(self._trees[slot].tokens[path].tolist())


def _laws(given: Any) -> FloatArray:
    return floats(np.array(given, dtype=np.float64, ndmin=2))


def path_number(path: Iterable[int]) -> int:
    """A number that hangs on every token of a path, for tables to be looked up by."""
    mixed = 0
    for token in path:
        mixed = (mixed * 31 + token + 1) % 2**32
    return mixed


class Memoryless(Drafter):
    """A drafter that looks at nothing but each tree's own paths."""

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        """It needs no prompt."""

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        return Proposed([self.offer(one.tree, one.nodes, one.width) for one in frontiers])

    @abstractmethod
    def offer(self, tree: TokenTree, frontier: IntArray, width: int) -> Candidates:
        """The candidates for one tree."""

    def commit(self, committed: Mapping[int, Committed]) -> None:
        """It remembers nothing."""


@attrs.frozen(eq=False)
class TableDrafter(Memoryless):
    """Draws the law after each path from a table, always the same one after the same path. All it returns is read only.

    Attributes:
        laws: the table, shape `(tables, vocab)`, float64, each row summing to 1. Which row holds after a path is
            arbitrary (`path_number`), not the last token's. With one row the drafter does not look at the path at all.
        knows: most candidates it offers after a node; None for all that have some probability.
        fills: whether rows are padded to the width asked for; otherwise to the longest of them.
        excess: added to each log-probability, as rounding in half precision may do, at least 0.
    """

    laws: FloatArray = attrs.field(converter=_laws)
    knows: int | None = None
    fills: bool = True
    excess: float = 0.0

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.laws.shape[1])

    def law_after(self, path: Iterable[int]) -> FloatArray:
        """The law after the tokens of `path`, the root's first, shape `(vocab,)`, float64."""
        law: FloatArray = self.laws[path_number(path) % len(self.laws)]
        return law

    def _row(self, tree: TokenTree, node: int) -> int:
        """Which row of the table holds after a node."""
        count = len(self.laws)
        return path_number(tree.tokens[tree.path(node)].tolist()) % count if count > 1 else 0

    @cached_property
    def _ranked(self) -> tuple[IntArray, FloatArray]:
        """The tokens of each law by falling probability, and what is offered as their logp; -1 for what cannot come."""
        best = np.argsort(-self.laws, axis=1, kind="stable")
        probs = np.take_along_axis(self.laws, best, axis=1)
        with np.errstate(divide="ignore"):
            return np.where(probs > 0, best, -1), np.log(probs) + self.excess

    def offer(self, tree: TokenTree, frontier: IntArray, width: int) -> Candidates:
        rows = [self._row(tree, node) for node in frontier.tolist()]
        known = width if self.knows is None else min(width, self.knows)
        best, scores = self._ranked
        tokens, logp = best.take(rows, axis=0)[:, :known], scores.take(rows, axis=0)[:, :known]
        if not self.fills:
            width = max(1, int((tokens >= 0).sum(axis=1).max()))
            tokens, logp = tokens[:, :width].copy(), logp[:, :width].copy()
        missing = len(frontier), max(width - tokens.shape[1], 0)
        if missing[1]:
            tokens = np.concatenate([tokens, np.full(missing, -1)], axis=1)
            logp = np.concatenate([logp, np.full(missing, -np.inf)], axis=1)
        path_logp = tree.path_logp[frontier][:, None] + logp
        for array in (tokens, logp, path_logp):
            array.setflags(write=False)
        return Candidates(frontier, tokens, logp, path_logp, LawRows(self.laws.take(rows, axis=0)))
