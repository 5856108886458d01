"""`taps` for several texts at once: its estimates for all their trees, and the policies within as one."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from talon_core.errors import blaming
from talon_core.forest import Forest, ForestCandidates, ForestNodes
from talon_core.forest_grower import ForestGrowth
from talon_core.forest_learner import ForestRound, LearningForest, as_one, asked_together
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import by_number, floats
from talon_strategies.acceptance_head import AcceptanceHead
from talon_strategies.entropy import OFFERED

if TYPE_CHECKING:
    from talon_strategies.taps import Taps

Estimate = Callable[[AcceptanceHead, FloatArray, IntArray], FloatArray]
"""`talon_strategies.taps.learned`."""


class TapsForest(LearningForest):
    """The policies of several texts. Those within see forests and candidates with the estimates as their scores.

    Args:
        policies: of equal options, whose own policies go together.
        estimate: how likely candidates are to be accepted.
    """

    policies: "Sequence[Taps]"

    def __init__(self, policies: "Sequence[Taps]", estimate: Estimate) -> None:
        self.policies = policies
        self._head, self._estimate = policies[0].head, estimate
        within = [one for one in (asked_together(each.of) for each in policies) if one is not None]
        assert len(within) == len(policies), "all were able when they were asked"
        self._within = as_one(within)
        self._layers: list[ForestNodes] = []  # of the forest of this round, with the estimates
        self._widths = np.zeros(len(policies), dtype=np.int64)  # candidates that each tree has asked for
        self._offered: tuple[IntArray, IntArray, FloatArray] | None = None  # the newest: their nodes, tokens, and paths

    def _blaming(self, method: str) -> AbstractContextManager[None]:
        return blaming("tree policy", self.policies[0].of, method)

    def _shown(self, forest: Forest) -> Forest:
        """The forest with the estimates; what has joined since it was last asked for is what was offered last."""
        if forest.layer == 0:
            self._layers = [forest.layers[0]]
        elif len(self._layers) == forest.layer:
            assert self._offered is not None
            (nodes, tokens, paths), newest = self._offered, forest.layers[-1]
            row_of = np.empty(newest.first, dtype=np.int64)
            row_of[nodes] = np.arange(len(nodes))
            rows = row_of[newest.parents]
            ranks = (tokens[rows] == newest.tokens[:, None]).argmax(axis=1)
            path_logp = floats(paths[rows, ranks])
            own = newest.tokens, newest.parents, path_logp, newest.depths, newest.trees, newest.first
            self._layers.append(ForestNodes(*own))
        return Forest(tuple(self._layers), forest.sizes, forest.contexts)

    def widths(self, forest: Forest, trees: IntArray) -> IntArray:
        shown, within = self._shown(forest), self._within
        with self._blaming("widths"):
            if isinstance(within, LearningForest):
                widths = np.asarray(within.widths(shown, trees))
            else:
                widths = np.broadcast_to(np.asarray(within.widths(shown)), (forest.size,))[trees]
            self._widths[trees] = widths
        return np.where(widths > 0, np.maximum(widths, OFFERED), 0)

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        shown, frontier, wide = self._shown(forest), candidates.frontier, candidates.width
        holding, places = shown.holding(frontier)
        asked = self._widths[candidates.trees]
        width = min(int(asked.max()), wide)
        logp = self._estimate(self._head, candidates.logp, 1 + holding.depths.take(places))[:, :width]
        tokens = candidates.tokens[:, :width]
        if (asked < width).any():
            wanted = np.arange(width) < asked[:, None]
            tokens, logp = np.where(wanted, tokens, -1), np.where(wanted, logp, -np.inf)
        path_logp = holding.path_logp.take(places)[:, None] + logp
        self._offered = frontier, tokens, path_logp
        given = frontier, candidates.trees, logp, path_logp, candidates.size, lambda: tokens
        with self._blaming("grow_forest"):
            growth = self._within.grow_forest(shown, ForestCandidates(*given))
            chosen = np.asarray(growth.chosen)
            if chosen.size and (tokens.ravel().take(chosen, mode="clip") < 0).any():
                raise ValueError("it chose a padded candidate (token -1); only candidates with a finite logp exist")
        return ForestGrowth(chosen // width * wide + chosen % width, growth.frontier)

    def finish_forest(self, forest: Forest) -> IntArray | None:
        shown = self._shown(forest)
        with self._blaming("finish_forest"):
            return self._within.finish_forest(shown)

    def observe_forest(self, round_: ForestRound) -> None:
        if isinstance(self._within, LearningForest):
            shown = ForestRound(self._shown(round_.forest), round_.kept, round_.accepted, round_.new)
            with self._blaming("observe_forest"):
                self._within.observe_forest(shown)

    def hand_back(self) -> None:
        if isinstance(self._within, LearningForest):
            with self._blaming("hand_back"):
                self._within.hand_back()
        if not self._layers:
            return
        trees = np.concatenate([one.trees for one in self._layers])
        path_logp = np.concatenate([one.path_logp for one in self._layers])
        order = by_number(trees, len(self.policies))
        ends = np.bincount(trees, minlength=len(self.policies)).cumsum()
        for policy, own in zip(self.policies, np.split(path_logp[order], ends[:-1]), strict=True):
            policy.scores.path_logp = own
