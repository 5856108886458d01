"""Trees of given sizes, so that passes of these sizes can be timed in the engine as it decodes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from time import perf_counter

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.choices import Choices
from talon_core.costs import MeasuredCosts
from talon_core.drafter import Ahead, Committed, Drafter, Frontier, Part, Proposed, RanOn, Reading
from talon_core.policy import Growth, TreePolicy
from talon_core.target import NodeDraws, StillWanted
from talon_core.tree import FloatArray, IntArray, TokenTree

LAYERS = 3
"""Layers of each tree after the first: each is timed."""

NO_NODES = np.arange(0)

UNLIKELY = -30.0
"""The natural log-probability of a candidate that no drafter has offered, at most."""


@attrs.define
class Shape:
    """What the next round is to be like; changed between rounds.

    Attributes:
        nodes: of each tree that is verified, the root included.
        rows: of each layer of the drafter after the first, for each tree.
        width: candidates of each.
        layers: how many are drafted, where anything is.
        drafts: whether anything is drafted; without it only the root is verified.
        rests: in how many rounds behind it nothing is drafted either.
        chains: in how many rounds, this one among them, the tree is a chain of `nodes`; 0 where it is none.
    """

    nodes: int = 1
    rows: int = 1
    width: int = 1
    layers: int = LAYERS + 1
    drafts: bool = True
    rests: int = 0
    chains: int = 0

    @property
    def first(self) -> int:
        """Candidates of the root: as many as the rows and the nodes need."""
        return max(self.rows, self.width, self.nodes - 1 - LAYERS * self.rows * self.width)


@attrs.frozen
class Shaped(TreePolicy):
    """Trees of `shape`: all that is offered joins, and the first nodes are kept.

    Attributes:
        budget: nodes of the largest tree that will be asked for.
        drafted: likewise, while it is drafted.
        shape: what the next ones are like.
    """

    name = "shaped"
    budget: int
    drafted: int
    shape: Shape = attrs.field(eq=False)

    @property
    def draft_budget(self) -> int:
        return self.drafted

    def width(self, tree: TokenTree) -> int:
        if not self.shape.drafts:
            return 0
        return self.shape.first if len(tree) == 1 and not self.shape.chains else self.shape.width

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        shape, above = self.shape, int(tree.depths[candidates.frontier[0]])
        if shape.chains:
            return Growth(candidates.best(1), None if above + 2 < shape.nodes else NO_NODES)
        chosen = candidates.best(shape.first if above == 0 else shape.rows * shape.width)
        rows = 0 if above + 1 == shape.layers else min(shape.rows, len(chosen))
        return Growth(chosen, np.arange(len(tree), len(tree) + rows))

    def rests(self) -> int:
        return self.shape.rests

    def chains(self) -> Chains | None:
        shape = self.shape
        if not shape.chains:
            return None
        everything = (-inf,) * (shape.nodes - 1)
        return Chains(shape.chains, shape.width, everything, everything)

    def chain_came(self, logp: FloatArray, nodes: int) -> None:
        """What was said is what is measured."""

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(np.arange(min(self.shape.nodes, len(tree))))


class Passes(MeasuredCosts):
    """Notes what the target's passes take, one by one.

    Attributes:
        all: nodes of all trees together, context, and seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[int, int, float]] = []

    def verified(self, nodes: int, context: int, batch: int, seconds: float) -> None:
        self.all.append((nodes, context, seconds))


class Full(Drafter):
    """A drafter whose answers are filled up to the width that is asked for, so that a tree of any size can be had.

    Args:
        inner: the drafter.
        vocab_size: the target's.

    Attributes:
        layers: rows, width and seconds of what the drafter itself took for each layer.
        reading: what it has read last before it could draft; None where it has read nothing.
        was_ahead: whether the passes of the latest round were run ahead of it.
    """

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self._inner = inner
        self._order = np.random.default_rng(0).permutation(vocab_size).tolist()
        self.max_depth = None if inner.max_depth is None else max(inner.max_depth, LAYERS + 1)
        self.runs_on = inner.runs_on
        self.layers: list[tuple[int, int, float]] = []
        self.reading: Reading | None = None
        self.was_ahead = False

    def session(self) -> AbstractContextManager[object]:
        return self._inner.session()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._inner.open(slot, prompt, room)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        return self._inner.resume(slot, prompt, room, source, length)

    def read(self, parts: Mapping[int, Part]) -> None:
        self._inner.read(parts)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        started = perf_counter()
        proposed = self._asked(frontiers)
        rows, width = sum(len(one.nodes) for one in frontiers), max(one.width for one in frontiers)
        seconds = perf_counter() - started
        if proposed.reading is not None:
            self.reading, seconds = proposed.reading, seconds - proposed.reading.seconds
        self.layers.append((rows, width, seconds))
        filled = [self._filled(one, own) for one, own in zip(frontiers, proposed.candidates, strict=True)]
        return attrs.evolve(proposed, candidates=filled)

    def _asked(self, frontiers: Sequence[Frontier]) -> Proposed:
        depth = int(frontiers[0].tree.depths[frontiers[0].nodes[0]])
        if self._inner.max_depth is not None and depth >= self._inner.max_depth:
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
        return self._inner.propose(frontiers)

    def _filled(self, frontier: Frontier, offered: Candidates) -> Candidates:
        width = min(frontier.width, len(self._order))
        if offered.tokens.shape[1] == width and offered.tokens.min() >= 0:
            return offered
        shape = len(frontier.nodes), width
        tokens, logp = np.full(shape, -1, dtype=np.int64), np.full(shape, -np.inf)
        for row in range(len(frontier.nodes)):
            real = offered.tokens[row] >= 0
            known = offered.tokens[row][real].tolist()
            others = [token for token in self._order[: 2 * width] if token not in known][: width - len(known)]
            tokens[row] = [*known, *others]
            least = min([UNLIKELY, *offered.logp[row][real].tolist()])
            logp[row] = [*offered.logp[row][real].tolist(), *(least - np.arange(len(others)))]
        along = frontier.tree.path_logp[frontier.nodes][:, None] + logp
        return Candidates(offered.frontier, tokens, logp, along)

    def is_ahead(self, slot: int) -> bool:
        self.was_ahead = self._inner.is_ahead(slot)
        return self.was_ahead

    def ahead(self, slot: int) -> Ahead | None:
        return self._inner.ahead(slot)

    def run_on(
        self,
        slot: int,
        chains: Chains,
        left: int,
        ends: frozenset[int],
        draws: NodeDraws | None = None,
        wanted: StillWanted | None = None,
        drafts: Callable[[int], FloatArray] | None = None,
    ) -> RanOn:
        more = {} if drafts is None else {"drafts": drafts}
        ran = self._inner.run_on(slot, chains, left, ends, draws, wanted, **more)
        self.was_ahead = ran.seconds > 0.0
        self.reading = ran.reading if ran.reading is not None else self.reading
        return ran

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._inner.commit(committed)

    def close(self, slot: int) -> None:
        self._inner.close(slot)
