"""The tree that is recorded: wide enough to hold what policies ask."""

import math

import attrs
import numpy as np
from attrs.validators import ge, le
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.tree import IntArray, TokenTree


@attrs.define(eq=False)
class Ahead:
    """What comes next in the text, which the recorder knows.

    Attributes:
        tokens: those that follow the root, shape `(left,)`, int64.
        floor: log-probability of the path below which no node is drafted from.
    """

    tokens: IntArray = attrs.field(factory=lambda: np.empty(0, dtype=np.int64))
    floor: float = -math.inf


BEAM = 10
"""Nodes of a beam that are drafted from however unlikely they are: EAGLE-2's (arXiv 2406.16858) is as wide."""


@attrs.frozen
class Superset(TreePolicy):
    """Drafts the likeliest nodes of each layer, and verifies none of them: the text goes on by one token a round.

    Some nodes are drafted from however unlikely they are: the one on the text, which says what a perfect policy would
    get, the one on the drafter's own best chain, and those of a beam of `BEAM` nodes, which come from its nodes in the
    layer above. The last two are what chains and EAGLE-2 ask for.

    Attributes:
        width: candidates of each node that are recorded.
        depth: layers.
        nodes: most nodes of a layer that are drafted from, besides those.
        least: how likely each must be, to the likeliest of its layer.
        keeps: verify all nodes that were drafted from, so that the target's laws at them are known.
        ahead: the text that comes.
    """

    name = "superset"
    candidates: int = attrs.field(default=32, validator=ge(1))
    depth: int = attrs.field(default=12, validator=ge(1))
    nodes: int = attrs.field(default=64, validator=ge(1))
    least: float = attrs.field(default=1e-3, validator=[ge(0), le(1)])
    keeps: bool = False
    ahead: Ahead = attrs.field(factory=Ahead, eq=False)
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: self._budget(), takes_self=True))
    _lines: "_Lines" = attrs.field(init=False, eq=False, factory=lambda: _Lines())

    def _budget(self) -> int:
        return self.draft_budget if self.keeps else 1

    @property
    def draft_budget(self) -> int:
        """All nodes that are drafted from, and one more, so that drafting does not end with the last of them."""
        return 2 + (self.depth - 1) * (self.nodes + BEAM + 2)

    def fewest(self, positions: int, max_depth: int | None) -> int:
        """The nodes of all trees along a text that are drafted from at least: those of the beam.

        It is so where as many candidates as are wanted are offered, and none of the beam ends the text.

        Args:
            positions: new tokens of the text.
            max_depth: the deepest node that the drafter drafts; None where it knows no limit.
        """
        depth = self.depth if max_depth is None else min(self.depth, max_depth)
        layers = [min(self.candidates ** min(layer, BEAM), BEAM) for layer in range(depth)]
        return sum(sum(layers[:left]) for left in range(positions))

    def width(self, tree: TokenTree) -> int:
        return self.candidates

    def begin(self, sequence: SequenceInfo) -> "Superset":
        return self

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        layer, lines = int(tree.depths[candidates.frontier[0]]), self._lines
        if not layer:
            lines.begin()
        if layer + 1 >= self.depth:
            return Growth(np.empty(0, dtype=np.int64))
        floor = float(candidates.path_logp.max()) + math.log(self.least) if self.least else -math.inf
        likely = candidates.best(self.nodes, at_least=floor).tolist()
        text = self._of_text(candidates, lines.text, layer)
        chain = self._best_of(candidates, lines.chain, 1)
        beam = self._best_of(candidates, lines.beam, BEAM)
        path_logp, least = candidates.path_logp.ravel(), self.ahead.floor
        chosen = sorted(flat for flat in {*likely, *text, *chain, *beam} if path_logp.item(flat) >= least)
        place = {flat: len(tree) + number for number, flat in enumerate(chosen)}
        lines.text, lines.chain, lines.beam = (
            {place[flat] for flat in own if flat in place} for own in (text, chain, beam)
        )
        return Growth(np.array(chosen, dtype=np.int64))

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree if self.keeps else tree.keep([0])

    def _of_text(self, candidates: Candidates, above: set[int], layer: int) -> list[int]:
        """The candidate with which the text goes on, if it does and it is offered."""
        if layer >= len(self.ahead.tokens):  # the text ends with its end token, above this layer
            return []
        on_text = _among(candidates.frontier, above) & (candidates.tokens == self.ahead.tokens[layer])
        found: list[int] = np.flatnonzero(on_text).tolist()
        return found

    def _best_of(self, candidates: Candidates, above: set[int], count: int) -> list[int]:
        """The likeliest candidates below some nodes."""
        own = _among(candidates.frontier, above)
        found: list[int] = candidates.best(count, score=np.where(own, candidates.path_logp, -np.inf)).tolist()
        return found


def _among(nodes: IntArray, some: set[int]) -> NDArray[np.bool_]:
    """Whether each node is among some, shape `(nodes, 1)`; of so few Python is faster than `np.isin`."""
    return np.array([node in some for node in nodes.tolist()])[:, None]


@attrs.frozen
class OnText(TreePolicy):
    """Drafts the text that comes, as far as it is offered, and notes how likely the path to its last token is.

    Attributes:
        candidates: of each node that are looked at.
        depth: layers.
        ahead: the text; its `floor` is set, where any of it is offered.
    """

    name = "on-text"
    candidates: int
    depth: int
    ahead: Ahead = attrs.field(eq=False)
    budget: int = attrs.field(init=False, default=attrs.Factory(lambda self: 2 + self.depth, takes_self=True))

    def width(self, tree: TokenTree) -> int:
        return self.candidates

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        layer = int(tree.depths[candidates.frontier[0]])
        if layer + 1 >= len(self.ahead.tokens):  # the last token of a text is no drafted one
            return Growth(np.empty(0, dtype=np.int64))
        found = np.flatnonzero(candidates.tokens[0] == self.ahead.tokens[layer])
        if found.size:
            self.ahead.floor = candidates.path_logp.item(found[0])
        return Growth(found[: int(layer + 1 < self.depth)])


class _Lines:
    """The nodes of the deepest layer that are on the text, on the drafter's best chain, and in the beam."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new tree: all of them begin at the root."""
        self.text, self.chain, self.beam = {0}, {0}, {0}
