"""Policies that are asked one by one, one for each of several texts, for trees that grow side by side."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.engine.checked_policy import checked_budgets, checked_children, fixed_chaining
from talon_core.engine.growing import given_array
from talon_core.forest import Forest, ForestCandidates, ForestNodes
from talon_core.forest_grower import ForestGrowth
from talon_core.forest_learner import ForestRound, LearningForest
from talon_core.policy import Growth, TreePolicy
from talon_core.trace.drafter import no_law
from talon_core.tree import FloatArray, IntArray, TokenTree, tree_of
from talon_core.tree_arrays import begins_of, by_number, joined


class Unusual(Exception):
    """A policy has answered what one tree may have, and a forest may not, or what is wrong for both."""


class InTurn(LearningForest):
    """Asks policies as they are asked for one tree each, in turn.

    What it saves is what is found, looked up and checked for all trees at once. It answers for the usual alone:
    whatever else a policy says raises an error, and the policy is then asked text by text.

    Args:
        policies: text by text; their children are deterministic, and their budgets equal.
        choices: the randomness of each.

    Attributes:
        law_asked: whether one has asked for a law; there are none.
    """

    def __init__(self, policies: Sequence[TreePolicy], choices: Sequence[Choices]) -> None:
        self.policies = policies
        self.law_asked = False
        self._goes_on = np.ones(len(policies), dtype=bool)
        self._choices = choices
        self._budgets = checked_budgets(policies[0])
        self._trees: dict[int, TokenTree] = {}  # as the policies are shown them
        self._places = np.empty(0, dtype=np.int64)  # of each node of the forest in its tree
        self._seen = 0  # layers of the forest

    def begin(self, goes_on: NDArray[np.bool_]) -> None:
        """A new round of some texts, shape `(texts,)`."""
        self._goes_on, self._seen = goes_on, 0

    def chained(self, trees: IntArray) -> NDArray[np.bool_]:
        return np.array([fixed_chaining(self.policies[tree])() is not None for tree in trees.tolist()], dtype=bool)

    def widths(self, forest: Forest, trees: IntArray) -> IntArray:
        self._look(forest)
        return np.array([int(self.policies[tree].width(self._trees[tree])) for tree in trees.tolist()])

    def _look(self, forest: Forest) -> None:
        """Take note of what has joined."""
        if not self._seen:
            self._root(forest)
        elif self._seen <= forest.layer and len(forest.layers[-1]):
            self._join(forest, forest.layers[-1])
        self._seen = len(forest.layers)

    def _root(self, forest: Forest) -> None:
        if checked_budgets(self.policies[0]) != self._budgets:  # by which trees of all are bounded
            raise Unusual
        self._places = np.zeros(forest.size, dtype=np.int64)
        self._trees = {}
        tokens = forest.tokens.tolist()
        for number in self._goes_on.nonzero()[0].tolist():
            policy = self.policies[number]
            if checked_budgets(policy) != self._budgets or checked_children(policy) != "deterministic":
                raise Unusual
            self._trees[number] = TokenTree.root(tokens[number])

    def _join(self, forest: Forest, newest: ForestNodes) -> None:
        parents, bounds = self._places[newest.parents], _bounds(newest.trees)
        for number, first, end in bounds:
            tree, own = self._trees[number], slice(first, end)
            self._trees[number] = tree_of(
                joined(tree.tokens, newest.tokens[own]),
                joined(tree.parents, parents[own]),
                joined(tree.path_logp, newest.path_logp[own]),
                joined(tree.depths, newest.depths[own]),
            )
        added = np.bincount(newest.trees, minlength=forest.size)
        behind = np.arange(len(newest)) - np.repeat([first for _, first, _ in bounds], added[added > 0])
        self._places = np.concatenate([self._places, (forest.sizes - added)[newest.trees] + behind])

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        self._look(forest)
        width, at = candidates.width, self._places[candidates.frontier]
        tokens, logp, path_logp = candidates.tokens, candidates.logp, candidates.path_logp
        bounds = _bounds(candidates.trees)
        # what is padded at the end of all of a tree's rows is not shown, as most drafters give no such thing
        offered = np.maximum.reduceat((tokens >= 0).sum(axis=1), [first for _, first, _ in bounds]).tolist()
        chosen: list[IntArray] = []
        given: list[tuple[int, int, object]] = []  # of each tree nodes that join, and what is to be drafted from next
        for (number, first, end), most in zip(bounds, offered, strict=True):
            rows = slice(first, end)
            shown = Candidates(
                at[rows].copy(),  # of its own, as it might write into them
                tokens[rows, :most].copy(),
                logp[rows, :most].copy(),
                path_logp[rows, :most].copy(),
                self._no_law,
            )
            growth = self.policies[number].grow(self._trees[number], shown, self._choices[number])
            if not isinstance(growth, Growth) or growth.drawn:
                raise Unusual
            taken = _whole_numbers(growth.chosen, (end - first) * most)
            if most < width or first:
                taken = taken // most * width + taken % most + first * width
            chosen.append(taken)
            given.append((number, len(taken), growth.frontier))
        frontier = None if all(own is None for _, _, own in given) else self._frontier(forest, given)
        return ForestGrowth(np.concatenate(chosen), frontier)

    def _frontier(self, forest: Forest, given: Sequence[tuple[int, int, object]]) -> IntArray:
        """What is drafted from next, as nodes of the forest to which some are added, from what each policy has said."""
        nodes, count = _by_tree(forest), len(forest)
        found: list[IntArray] = []
        for number, added, own in given:
            new = np.arange(count, count + added)
            if own is None or not added:
                found.append(new)
            else:
                found.append(np.concatenate([nodes[number], new])[_whole_numbers(own, len(nodes[number]) + added)])
            count += added
        return np.concatenate(found)

    def _no_law(self, row: int) -> FloatArray:
        self.law_asked = True
        return no_law(row)

    def finish_forest(self, forest: Forest) -> IntArray | None:
        self._look(forest)
        selected: dict[int, list[int]] = {}
        for number, drafted in self._trees.items():
            given = self.policies[number].finish(drafted)
            if given is not drafted:
                selected[number] = _part_of(drafted, given)
        if not selected:
            return None
        nodes = _by_tree(forest)
        return np.concatenate(
            [nodes[one][selected[one]] if one in selected else nodes[one] for one in range(len(nodes))]
        )

    def observe_forest(self, round_: ForestRound) -> None:
        """Nothing: each policy is told of its own round, by whoever goes through the texts."""

    def hand_back(self) -> None:
        pass


def _bounds(trees: IntArray) -> list[tuple[int, int, int]]:
    """Of each tree that has some of the entries, which stand together: which, and where they begin and end."""
    firsts = begins_of(trees)
    if (np.diff(trees) < 0).any():
        raise Unusual
    return [
        (tree, *ends)
        for tree, ends in zip(trees[firsts].tolist(), pairwise([*firsts.tolist(), len(trees)]), strict=True)
    ]


def _whole_numbers(given: object, below: int) -> IntArray:
    found = given_array(given)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise Unusual
    numbers = found.tolist()
    if numbers and (min(numbers) < 0 or max(numbers) >= below):
        raise Unusual
    return found.astype(np.int64)


def _part_of(drafted: TokenTree, given: object) -> list[int]:
    """The nodes of a tree that a policy has kept of it."""
    if not isinstance(given, TokenTree) or given.drawn:
        raise Unusual
    held = zip(drafted.parents.tolist(), drafted.tokens.tolist(), strict=True)
    place_of = {pair: place for place, pair in enumerate(held)}
    places: list[int] = []
    for parent, token in zip(given.parents.tolist(), given.tokens.tolist(), strict=True):
        place = place_of.get((-1 if parent < 0 else places[parent], token))
        if place is None or (places and place <= places[-1]):
            raise Unusual
        places.append(place)
    if not np.array_equal(drafted.path_logp[places], given.path_logp):
        raise Unusual
    return places


def _by_tree(forest: Forest) -> list[IntArray]:
    """The nodes of each tree, in their order."""
    return np.split(by_number(forest.trees, forest.size), forest.sizes.cumsum()[:-1])
