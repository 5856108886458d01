"""The trees of several slots while they grow together: a forest to their policy, to the drafter a tree for each."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.drafter import Frontier
from talon_core.engine.checked_candidates import plainly_fine, rectangle
from talon_core.engine.growing import DraftLimits
from talon_core.engine.growing_forest import GrowingForest
from talon_core.engine.offers import Offers
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower
from talon_core.forest_learner import LearningForest
from talon_core.rounds import Span
from talon_core.tree import FloatArray, IntArray, TokenTree, with_nodes
from talon_core.tree_arrays import begins_of


class GrowingSlots:
    """Trees of sequences with equal policies.

    Args:
        grower: what serves them.
        slots: of the sequences.
        roots: their last committed tokens.
        contexts: how many tokens each has committed.
        limits: what bounds each tree besides its policy; of one vocabulary, and with the same ends.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        grower: ForestGrower | LearningForest,
        slots: Sequence[int],
        roots: Sequence[int],
        contexts: Sequence[int],
        limits: Sequence[DraftLimits],
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self.slots = slots
        self.trees = [TokenTree.root(root) for root in roots]
        self.spans: list[Span] = []  # of the policy, for each sequence its share
        self._layer = 0  # that is drafted next
        self.kept: NDArray[np.bool_] | None = None  # nodes of the forest that are verified, once it is finished
        self._now = now
        deepest = np.array([one.max_depth for one in limits])
        shared = limits[0].vocab_size, limits[0].ends
        self._growing = GrowingForest(
            grower, np.array(roots), deepest, *shared, contexts=np.array(contexts), reserved=limits[0].budgets
        )
        self.places: IntArray = np.zeros(len(slots), dtype=np.int64)  # of each node of the forest in its tree
        self._rows: list[tuple[int, int, int]] = []  # a tree, and where its rows begin and end

    def spent(self, started: float, work: str, layer: int | None = None) -> None:
        """The policies have taken the time since then; `work` and `layer` as of `Span`."""
        ended = started + (self._now() - started) / len(self.slots)
        self.spans.append(Span("policy", started, ended, work, layer))

    def asked(self, faults: Mapping[int, Exception]) -> list[Frontier]:
        """What the drafter is asked next; nothing where no tree goes on.

        Args:
            faults: what has failed, by slot: these trees have ended.

        Raises:
            PluginError: if the policy breaks its contract; the message names it.
        """
        growing = self._growing
        if faults:
            growing.leave([tree for tree, slot in enumerate(self.slots) if slot in faults])
        if not len(growing.frontier):
            return []
        started = self._now()
        widths = growing.widths()
        self.spent(started, "width", self._layer)
        if not len(growing.frontier):
            return []
        trees, places = growing.trees_of(growing.frontier), self.places[growing.frontier]
        firsts = begins_of(trees)
        ends = [*firsts[1:].tolist(), len(trees)]
        self._rows = [*zip(trees[firsts].tolist(), firsts.tolist(), ends, strict=True)]
        return [
            Frontier(self.slots[tree], self.trees[tree], places[first:end], int(widths[first]))
            for tree, first, end in self._rows
        ]

    def take(
        self,
        offered: Sequence[Candidates],
        asked: Sequence[Frontier],
        offers: Offers,
        faults: MutableMapping[int, Exception],
    ) -> None:
        """Let the policy choose from what is offered.

        Args:
            offered: for each of the frontiers.
            asked: they.
            offers: checks it.
            faults: gets what is wrong for a tree, by slot, which ends it.

        Raises:
            PluginError: if the policy breaks its contract for all; the message names it.
        """
        growing, layer = self._growing, self._layer
        self._layer += 1
        tokens, logp, path_logp = self._stacked(offered, asked, offers, faults)
        if not len(growing.frontier):
            return
        trees, nodes = growing.trees_of(growing.frontier), growing.frontier
        shown = ForestCandidates(nodes.copy(), trees, logp, path_logp.copy(), len(self.slots), tokens.copy)

        def taking(row: IntArray, rank: IntArray) -> tuple[IntArray, FloatArray]:
            return tokens[row, rank], path_logp[row, rank]

        started, old = self._now(), len(growing.forest)
        growing.grow(shown, taking)
        self.spent(started, "grow", layer)
        if len(growing.forest) > old:
            self._add()
        self._note(faults)

    def _stacked(
        self,
        offered: Sequence[Candidates],
        asked: Sequence[Frontier],
        offers: Offers,
        faults: MutableMapping[int, Exception],
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Tokens, log-probabilities and those of paths in one rectangle, of the trees for which nothing is wrong."""
        growing = self._growing
        above = [one.tree.path_logp.take(one.nodes) for one in asked]
        stacked = plainly_fine(offered, asked, above, growing.vocab_size)
        if stacked is None:  # one by one, to find what is wrong
            checked: list[Candidates] = []
            kept: list[int] = []
            for number, (given, one) in enumerate(zip(offered, asked, strict=True)):
                try:
                    checked.append(offers.checked(given, one, growing.vocab_size))
                    kept.append(number)
                except Exception as error:
                    faults[one.slot] = error
            growing.leave([self._rows[number][0] for number in range(len(asked)) if number not in kept])
            asked, above = [asked[number] for number in kept], [above[number] for number in kept]
            if not checked:
                return np.empty((0, 1), dtype=np.int64), np.empty((0, 1)), np.empty((0, 1))
            stacked = rectangle([one.tokens for one in checked], [one.logp for one in checked])
        tokens, logp = stacked
        return tokens, logp, np.concatenate(above)[:, None] + logp

    def _add(self) -> None:
        """To each tree what has joined it."""
        newest = self._growing.forest.layers[-1]
        order = newest.trees.argsort(kind="stable")
        trees, parents = newest.trees[order], self.places[newest.parents[order]]
        firsts = begins_of(trees)
        ends = [*firsts[1:].tolist(), len(trees)]
        places = np.empty(len(newest), dtype=np.int64)
        for tree, first, end in zip(trees[firsts].tolist(), firsts.tolist(), ends, strict=True):
            own, before = order[first:end], self.trees[tree]
            places[own] = np.arange(len(before), len(before) + len(own))
            columns = newest.tokens[own], parents[first:end], newest.path_logp[own]
            self.trees[tree] = with_nodes(before, *columns, {}, layer=True)
        self.places = np.concatenate([self.places, places])

    def _note(self, faults: MutableMapping[int, Exception]) -> None:
        for tree, fault in self._growing.faults.items():
            faults.setdefault(self.slots[tree], fault)

    def finish(self, faults: MutableMapping[int, Exception]) -> dict[int, tuple[TokenTree, TokenTree]]:
        """Let the policy select.

        Args:
            faults: gets what is wrong for a tree, by slot.

        Returns:
            By slot the tree that is sent to the target, and the tree as it was drafted.

        Raises:
            PluginError: if the policy breaks its contract for all; the message names it.
        """
        started = self._now()
        kept = self.kept = self._growing.finish()
        self.spent(started, "finish")
        self._note(faults)
        forest, found = self._growing.forest, {}
        for number, (slot, tree) in enumerate(zip(self.slots, self.trees, strict=True)):
            if slot not in faults:
                own = tree.keep(self.places[(forest.trees == number) & kept]) if self._growing.selected else tree
                found[slot] = own, tree
        return found

    @property
    def forest(self) -> Forest:
        """The trees as they were drafted."""
        return self._growing.forest

    def hand_back(self) -> None:
        """Policies that learn are told of the round by themselves.

        Raises:
            PluginError: if that fails; the message names the policy.
        """
        started = self._now()
        self._growing.hand_back()
        self.spent(started, "end")
