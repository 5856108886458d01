"""What a policy answers for a forest is checked: errors name it, and end the trees alone that they are about."""

from collections.abc import Callable
from typing import Any, cast

import attrs
import numpy as np
import pytest

from talon_core.candidates import Candidates
from talon_core.choices import Choices, SeededChoices
from talon_core.engine.growing_forest import GrowingForest
from talon_core.errors import PluginError
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_drawer import ForestDrawer, ForestDraws, ForestLaws
from talon_core.forest_grower import ForestGrower, ForestGrowth
from talon_core.forest_learner import ForestRound, LearningForest
from talon_core.policy import Growth
from talon_core.testing.drawn_forests import WholeLaws
from talon_core.tree import FloatArray, IntArray, TokenTree


@attrs.frozen
class Answering(ForestGrower):
    """Answers what it is told to."""

    name = "answering"
    grown: Callable[[Forest, ForestCandidates], Any] = lambda _, pool: ForestGrowth(pool.best(2))
    kept: Callable[[Forest], Any] = lambda _: None
    wide: Any = 2
    budget: int = 6

    def widths(self, forest: Forest) -> Any:
        return self.wide

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(2))

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> Any:
        return self.grown(forest, candidates)

    def finish_forest(self, forest: Forest) -> Any:
        return self.kept(forest)


def asked(growing: GrowingForest, padded: int | None = None) -> None:
    """A layer of three trees: tokens 0 and 1, as likely as each other; of one tree, the second is padding."""
    rows = growing.widths()
    frontier = growing.frontier
    tokens = np.tile([0, 1], (len(frontier), 1))
    trees = growing.trees_of(frontier)
    if padded is not None:
        tokens[trees == padded, 1] = -1
    logp: FloatArray = np.where(tokens < 0, -np.inf, -0.5)
    path_logp = growing.forest.path_logp[frontier][:, None] + logp
    pool = ForestCandidates(frontier.copy(), trees, logp.copy(), path_logp.copy(), growing.forest.size, lambda: tokens)

    def taking(row: IntArray, rank: IntArray) -> tuple[IntArray, FloatArray]:
        return tokens[row, rank], path_logp[row, rank]

    assert len(rows) == len(frontier)
    growing.grow(pool, taking, flat_laws if isinstance(growing.policy, ForestDrawer) else None)


def flat_laws(shown: ForestCandidates, rows: IntArray) -> ForestLaws:
    """Each of ten tokens is as likely as any other."""
    return WholeLaws([lambda: np.full(10, 0.1)] * len(rows), shown, [SeededChoices(seed) for seed in range(3)])


def grown(
    policy: ForestGrower | ForestDrawer | LearningForest, layers: int = 1, padded: int | None = None, **limits: Any
) -> GrowingForest:
    growing = GrowingForest(policy, np.array([7, 8, 9]), np.array([3, 1, 3]), 10, **limits)
    for _ in range(layers):
        asked(growing, padded)
    return growing


def test_trees_grow_as_deep_as_they_may() -> None:
    growing = grown(Answering(), 2)
    assert growing.forest.sizes.tolist() == [5, 3, 5]
    assert set(growing.trees_of(growing.frontier).tolist()) == {0, 2}
    asked(growing)
    assert sorted(growing.faults) == [0, 2]
    assert "grew its tree to 7 nodes, the root included; its draft_budget is 6" in str(growing.faults[0])
    assert not len(growing.frontier)


def test_nothing_is_drafted_behind_an_end() -> None:
    growing = grown(Answering(), ends=(0,))
    holding, places = growing.forest.holding(growing.frontier)
    assert holding.tokens[places].tolist() == [1, 1]
    assert not len(GrowingForest(Answering(), np.array([4]), np.array([3]), 10, (4,)).frontier)


WRONG: dict[str, tuple[Any, str]] = {
    "no growth": (5, r"returned int from grow_forest; it must return a ForestGrowth"),
    "no indices": (ForestGrowth(np.zeros(2)), r"chose candidates as an array of shape \(2,\) and type float64"),
    "outside": (ForestGrowth(np.array([6])), "chose candidate 6; there are candidates 0 to 5"),
    "no frontier": (ForestGrowth(np.array([0]), np.zeros((1, 1), int)), r"returned a frontier of shape \(1, 1\)"),
    "far": (ForestGrowth(np.array([0]), np.array([9])), "from a node outside its forest of 4 nodes"),
}


@pytest.mark.parametrize(("answer", "why"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_answer_at_all_is_raised(answer: Any, why: str) -> None:
    with pytest.raises(PluginError, match=f"tree policy 'answering' .*{why}"):
        grown(Answering(lambda *_: answer))


@attrs.frozen
class Drawing(ForestDrawer):
    """Draws as it is told to."""

    name = "drawing"
    children = "hybrid"
    drawn: Callable[[ForestCandidates, ForestLaws], Any]
    budget: int = 6

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(2))

    def draw_forest(self, forest: Forest, candidates: ForestCandidates, laws: ForestLaws) -> Any:
        return self.drawn(candidates, laws)


@attrs.frozen
class Sampling(Drawing):
    """The same, of chains."""

    children = "sampled-chain"


@attrs.frozen
class Independent(Drawing):
    """The same, of independent draws."""

    children = "iid"


def drew(rows: list[int], chosen: list[int] | None = None, logp: Any = None, **options: Any) -> Any:
    """Draws under some rows beside candidates that were chosen."""

    def answer(candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        draws = laws.drawing(**options)
        assert draws.draw(np.array(rows)).all()
        return ForestGrowth(np.array(chosen or [], dtype=np.int64), drawn=draws, logp=logp)

    return answer


NONE, NO_DRAWS = np.arange(0), cast(ForestDraws, 5)

WRONG_DRAWS: dict[str, tuple[Drawing, str]] = {
    "no draws": (
        Drawing(lambda *_: ForestGrowth(np.arange(0), drawn=5)),
        "returned draws from draw_forest that are not of this layer",
    ),  # type: ignore[arg-type]
    "two": (Drawing(drew([0, 0, 1])), "drew 2 children of one node; its children are hybrid"),
    "fixed": (Sampling(drew([0], [2])), "chose fixed candidates; its children are sampled-chain"),
    "without": (Independent(drew([0, 0])), "drew without replacement; its children are iid"),
    "beside": (Drawing(drew([0], [0])), "drew from a law that has a fixed child of the same node"),
    "scores": (Drawing(drew([0], logp=np.zeros(2))), r"gave scores of shape \(2,\) for 1 draws"),
    "endless": (Drawing(drew([0], logp=np.array([-np.inf]))), "each has one, and it is finite"),
}


@pytest.mark.parametrize(("policy", "why"), WRONG_DRAWS.values(), ids=WRONG_DRAWS.keys())
def test_draws_that_trees_of_the_kind_cannot_hold_are_raised(policy: Drawing, why: str) -> None:
    with pytest.raises(PluginError, match=f"tree policy 'drawing' .*{why}"):
        grown(policy)


def test_draws_of_another_layer_are_none_of_this_one() -> None:
    kept: list[ForestDraws] = []

    def answer(candidates: ForestCandidates, laws: ForestLaws) -> ForestGrowth:
        kept.append(laws.drawing())
        kept[0].draw(np.array([0]))
        return ForestGrowth(NONE, drawn=kept[0])

    with pytest.raises(PluginError, match=r"tree policy 'drawing' .*returned draws from draw_forest that are not of"):
        grown(Drawing(answer), 2)
    assert len(kept) == 2


def test_what_was_drawn_joins_behind_what_was_chosen() -> None:
    growing = grown(Drawing(drew([0, 2], [1, 4], without=np.array([1, 4]))))
    (layer,) = growing.drawn
    assert layer is not None
    assert layer.parents.tolist() == [0, 2]
    assert layer.nodes.tolist() == [5, 6]
    assert growing.forest.parents[3:].tolist() == [0, 2, 0, 2]
    assert growing.forest.tokens[3:5].tolist() == [1, 0]
    assert growing.forest.tokens[5] != 1  # which the law was without
    assert growing.forest.tokens[6] != 0
    np.testing.assert_allclose(growing.forest.path_logp[5:], np.log(layer.draws.prob))
    assert growing.frontier.tolist() == [3, 5, 4, 6]


def test_a_token_that_was_drawn_twice_is_one_node() -> None:
    growing = grown(Independent(drew([1] * 40, replacement=True), budget=41))
    (layer,) = growing.drawn
    assert layer is not None
    tokens = growing.forest.tokens[layer.nodes]
    assert tokens.tolist() == layer.draws.tokens.tolist()
    assert len(growing.forest) == 3 + len({*tokens.tolist()}) < 43


def test_an_error_of_the_policy_is_raised_with_its_name() -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("oh")

    with pytest.raises(PluginError, match=r"tree policy 'answering' .* raised KeyError in grow_forest: 'oh'"):
        grown(Answering(broken))
    with pytest.raises(PluginError, match=r"raised KeyError in finish_forest"):
        grown(Answering(kept=broken)).finish()
    with pytest.raises(PluginError, match=r"returned widths of shape \(2,\) and type int64"):
        grown(Answering(wide=np.array([1, 2])))


FOR_ONE: dict[str, tuple[Any, str]] = {
    "twice": (ForestGrowth(np.array([0, 2, 2, 4])), "chose the same candidate twice"),
    "padded": (ForestGrowth(np.array([0, 3, 4])), r"chose a padded candidate \(token -1\)"),
    "drafted twice": (ForestGrowth(np.array([0, 2, 4]), np.array([3, 4, 4, 5])), "draft from a node twice"),
    "drafted again": (ForestGrowth(np.array([0, 2, 4]), np.array([3, 1, 5])), "draft from a node twice"),
}


@pytest.mark.parametrize(("answer", "why"), FOR_ONE.values(), ids=FOR_ONE.keys())
def test_what_is_wrong_for_one_tree_ends_it_alone(answer: ForestGrowth, why: str) -> None:
    growing = GrowingForest(
        Answering(lambda forest, pool: ForestGrowth(pool.best(1)) if forest.layer else answer),
        np.array([7, 8, 9]), np.array([3, 3, 3]), 10,
    )  # fmt: skip
    asked(growing, padded=1)
    assert [*growing.faults] == [1]
    assert why.replace("\\", "") in str(growing.faults[1])
    asked(growing)
    assert growing.forest.sizes[[0, 2]].tolist() == [3, 3]


def test_a_node_that_was_left_out_can_be_drafted_from_later() -> None:
    def frontiers(forest: Forest, pool: ForestCandidates) -> ForestGrowth:
        return ForestGrowth(pool.best(2), np.array([4, 6, 8]) if forest.layer else np.array([3, 5, 7]))

    growing = GrowingForest(Answering(frontiers), np.array([7, 8, 9]), np.array([3, 3, 3]), 10)
    asked(growing)
    asked(growing)
    asked(growing)
    assert {*growing.faults} == {0, 1, 2}  # by their budget, at last
    assert growing.forest.parents.tolist() == [-1] * 3 + [0, 0, 1, 1, 2, 2, 3, 3, 5, 5, 7, 7, 4, 4, 6, 6, 8, 8]


KEPT: dict[str, tuple[Any, str]] = {
    "no indices": (np.zeros(2), "returned nodes of shape"),
    "outside": (np.array([0, 1, 2, 9]), "keeps a node outside its forest of 9 nodes"),
    "twice": (np.array([0, 1, 2, 2]), "keeps a node twice"),
}


@pytest.mark.parametrize(("kept", "why"), KEPT.values(), ids=KEPT.keys())
def test_what_is_kept_is_nodes_of_the_forest(kept: Any, why: str) -> None:
    with pytest.raises(PluginError, match=why):
        grown(Answering(kept=lambda _: kept)).finish()


def test_a_tree_that_is_kept_without_its_root_or_a_parent_or_too_large_ends_alone() -> None:
    growing = grown(Answering(kept=lambda _: np.array([0, 3, 4, 2, 7])))
    growing.finish()
    assert [*growing.faults] == [1]
    assert "keeps a node without its parent, or not the root" in str(growing.faults[1])
    growing = grown(Answering(kept=lambda forest: np.arange(len(forest)), budget=3))
    assert growing.finish().all()
    assert not growing.faults


def test_a_tree_of_which_nothing_is_known_is_not_shown() -> None:
    shown: list[ForestCandidates] = []

    def note(forest: Forest, pool: ForestCandidates) -> ForestGrowth:
        shown.append(pool)
        return ForestGrowth(pool.best(1))

    growing = GrowingForest(Answering(note), np.array([7, 8]), np.array([3, 3]), 10)
    growing.widths()
    logp = np.array([[-np.inf], [-1.0]])
    tokens = np.array([[-1], [4]])
    pool = ForestCandidates(np.arange(2), np.arange(2), logp, logp, 2, lambda: tokens)
    growing.grow(pool, lambda row, rank: (tokens[row, rank], logp[row, rank]))
    assert shown[0].trees.tolist() == [1]
    assert shown[0].tokens.tolist() == [[4]]
    assert growing.forest.sizes.tolist() == [1, 2]
    assert growing.forest.tokens.tolist() == [7, 8, 4]


class Beside(LearningForest):
    """Three policies that answer as the one of a forest does."""

    def __init__(self, of: Answering) -> None:
        self.policies, self._of = [of] * 3, of

    def widths(self, forest: Forest, trees: IntArray) -> Any:
        assert trees.tolist() == np.unique(trees).tolist()
        return self._of.wide(trees) if callable(self._of.wide) else np.full(len(trees), self._of.wide)

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> Any:
        return self._of.grown(forest, candidates)

    def finish_forest(self, forest: Forest) -> Any:
        return self._of.kept(forest)

    def observe_forest(self, round_: ForestRound) -> None:
        """It learns nothing."""

    def hand_back(self) -> None:
        """Likewise."""


def test_policies_side_by_side_are_asked_for_the_trees_that_are_drafted_for() -> None:
    seen: list[list[int]] = []

    def wide(trees: IntArray) -> IntArray:
        seen.append(trees.tolist())
        return np.where(trees == 2, 0, 2)

    growing = grown(Beside(Answering(wide=wide)))
    assert growing.forest.sizes.tolist() == [3, 3, 1]
    asked(growing)
    assert seen == [[0, 1, 2], [0]]


@pytest.mark.parametrize(
    ("answering", "why"),
    [
        (Answering(wide=lambda trees: np.ones(len(trees) + 1)), r"returned widths of shape \(4,\) and type float64"),
        (Answering(lambda *_: 5), "returned int from grow_forest; it must return a ForestGrowth"),
    ],
)
def test_what_they_answer_wrongly_names_the_policy(answering: Answering, why: str) -> None:
    with pytest.raises(PluginError, match=f"tree policy 'answering' .*{why}"):
        grown(Beside(answering))
