"""Forests: several trees, and what is offered to them, are what each of them is alone."""

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import forest_grower, serve_alike
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.tree import TokenTree
from talon_strategies import Chain, DynamicDepth, Eagle2, Heuristic, Svip, Talon

SCORES = st.sampled_from([-np.inf, -3.0, -2.0, -1.0, 0.0]) | st.floats(-5, 0)


def of_two_trees() -> Forest:
    """Tokens 7 and 8 as roots; below them 1 and 2, and 3; below the 2 a 4, below the 3 a 5."""
    forest = Forest.roots(np.array([7, 8]), np.array([90, 40]))
    forest = forest.grown(np.array([1, 2, 3]), np.array([0, 0, 1]), np.array([-0.1, -0.2, -0.3]))
    return forest.grown(np.array([4, 5]), np.array([3, 4]), np.array([-0.25, -0.9]))


def test_a_forest_holds_its_trees() -> None:
    forest = of_two_trees()
    first, second = forest.tree(0), forest.tree(1)
    assert (first.tokens.tolist(), first.parents.tolist()) == ([7, 1, 2, 4], [-1, 0, 0, 2])
    assert (second.tokens.tolist(), second.parents.tolist()) == ([8, 3, 5], [-1, 0, 1])
    assert (forest.sizes.tolist(), forest.size, forest.layer, len(forest)) == ([4, 3], 2, 2, 7)
    assert forest.depths.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert forest.trees.tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert forest.contexts.tolist() == forest.copied().contexts.tolist() == [90, 40]
    assert Forest.roots(np.array([7, 8])).contexts.tolist() == [1, 1]


def test_the_best_nodes_of_each_tree_are_those_of_the_tree_alone() -> None:
    forest = of_two_trees()
    counts = range(1, 6)
    for wanted in [*counts, *(np.array(pair) for pair in itertools.product(counts, counts))]:
        kept = np.isin(np.arange(len(forest)), forest.best(wanted))
        for number, count in enumerate(np.broadcast_to(wanted, 2).tolist()):
            tree = forest.tree(number)
            expected = tree.keep(tree.best(count))
            assert forest.tree(number, kept).tokens.tolist() == expected.tokens.tolist()


def test_a_node_that_was_rounded_up_does_not_rank_before_its_parent() -> None:
    forest = Forest.roots(np.array([7])).grown(np.array([1, 2]), np.array([0, 0]), np.array([-0.5, -0.2]))
    forest = forest.grown(np.array([3]), np.array([1]), np.array([-0.1]))
    assert forest.best(3).tolist() == [0, 1, 2]


@st.composite
def pools(draw: st.DrawFn) -> tuple[ForestCandidates, list[Candidates]]:
    """Candidates of several trees, one of them perhaps without rows, and of each tree alone."""
    rows, width = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)), draw(st.integers(1, 5))
    count = sum(rows)
    logp = np.array(draw(st.lists(SCORES, min_size=count * width, max_size=count * width))).reshape(count, width)
    tokens, trees = np.where(logp > -np.inf, 1, -1), np.repeat(np.arange(len(rows)), rows)
    path_logp = logp - np.arange(count)[:, None]
    pool = ForestCandidates(np.arange(count), trees, logp, path_logp, len(rows), lambda: tokens)
    ends = np.cumsum(rows)[:-1]
    alone = [np.split(array, ends) for array in (np.arange(count), tokens, logp, path_logp)]
    return pool, [Candidates(*arrays) for arrays in zip(*alone, strict=True)]


@given(pools(), st.data())
def test_the_best_of_each_tree_are_those_of_the_tree_alone(
    pool: tuple[ForestCandidates, list[Candidates]], data: st.DataObject
) -> None:
    forest, alone = pool
    counts = np.array(data.draw(st.lists(st.integers(-1, 22), min_size=len(alone), max_size=len(alone))))
    least = np.array(data.draw(st.lists(SCORES, min_size=len(alone), max_size=len(alone))))
    firsts = np.cumsum([0, *(one.tokens.size for one in alone)]).tolist()
    for scored in (False, True):
        found = [
            first + one.best(int(count), score=one.logp if scored else None, at_least=float(floor))
            for first, one, count, floor in zip(firsts, alone, counts, least, strict=False)
        ]
        best = forest.best(counts, score=forest.logp if scored else None, at_least=least)
        assert best.tolist() == np.concatenate(found).tolist()
    for most in (1, 3, 9):
        assert forest.among_best(most).tolist() == sorted(forest.best(most).tolist())
    highest = [one.highest() if one.tokens.size else -np.inf for one in alone]
    assert forest.highest().tolist() == highest


@attrs.frozen
class Listening(Talon):
    name = "listening"

    def observe(self, round_: object) -> None:
        """It takes note."""


@attrs.frozen
class Forgetful(Listening):
    name = "forgetful"
    forgets: bool = True

    def learns_nothing(self) -> bool:
        return self.forgets


@attrs.frozen
class ListeningAgain(Forgetful):
    name = "listening-again"

    def observe(self, round_: object) -> None:
        """It takes note of something else."""


@attrs.frozen
class Stopping(Svip):
    name = "stopping"

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        return len(tree) > 1


@attrs.frozen
class Wider(Talon):
    name = "wider"

    def width(self, tree: TokenTree) -> int:
        return 3


def test_a_policy_has_the_ability_unless_a_subclass_has_changed_what_it_does() -> None:
    for able in (Talon(), Chain(), Eagle2(), DynamicDepth(), Forgetful()):
        assert forest_grower(able) is able
    for not_able in (Heuristic(), Listening(), Forgetful(forgets=False), ListeningAgain(), Wider(), Stopping()):
        assert forest_grower(not_able) is None


class Incomparable(Talon):
    def __eq__(self, other: object) -> bool:
        raise ValueError("nobody knows")

    __hash__ = None  # type: ignore[assignment]


def test_policies_serve_alike_if_they_are_equal() -> None:
    told = SequenceInfo(prompt_length=1, max_new_tokens=2, temperature=0.0)
    policies: list[TreePolicy] = [Talon().begin(told), Talon().begin(told)]
    assert serve_alike(policies)
    assert not serve_alike([*policies, Talon(mu=0.5)])
    assert not serve_alike([Incomparable(), Incomparable()])


@pytest.mark.parametrize("nodes", [[5, 6], [2, 6]])
def test_nodes_are_found_in_the_newest_layer_or_among_all(nodes: list[int]) -> None:
    forest = of_two_trees()
    holding, places = forest.holding(np.array(nodes))
    assert holding.tokens[places].tolist() == forest.tokens[nodes].tolist()
