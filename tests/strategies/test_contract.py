"""The contract that every policy's tests call: what it lets through and what it refuses."""

import itertools
import math
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given

from talon_core.chains import Chains
from talon_core.errors import PluginError
from talon_core.forest_grower import ForestGrowth
from talon_core.forest_learner import ForestLearner, LearningForest, forest_learner, forest_learners
from talon_core.forest_planner import ForestPlanner, TreePlan, forest_planner
from talon_core.policy import Growth, TreePolicy
from talon_core.testing import check_tree_policy, draft_trees
from talon_core.tree import TokenTree
from talon_strategies import (
    AdaEdl,
    CaDDTree,
    Chain,
    GammaTune,
    GammaTunePlus,
    Heuristic,
    SampledChain,
    SpecDecPlusPlus,
    SpecKV,
    Talon,
)


@attrs.frozen
class Widest(TreePolicy):
    """All that fits, best first."""

    name = "widest"
    budget: int = 12

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(self.budget - len(tree)))


@attrs.frozen
class Drawn(TreePolicy):
    """One candidate by chance."""

    name = "drawn"
    children = "sampled"
    budget: int = 6

    def grow(self, tree, candidates, choices):
        chosen = candidates.best(self.budget - len(tree))
        return Growth(chosen[[choices.pick(np.full(len(chosen), 1 / len(chosen)))]])


@attrs.frozen
class SaysItIsDeterministic(Drawn):
    children = "deterministic"


@attrs.frozen
class LikesPadding(Widest):
    def grow(self, tree, candidates, choices):
        return Growth(np.arange(min(candidates.tokens.size, self.budget - len(tree))))


@attrs.frozen
class Overwrites(Widest):
    def grow(self, tree, candidates, choices):
        candidates.path_logp[:] = 0.0
        return Growth(candidates.best(1))


@attrs.frozen
class Overspends(Widest):
    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(100))


@attrs.frozen
class Invents(Widest):
    def finish(self, tree):
        if not 1 < len(tree) < self.budget:
            return tree
        return tree.extend(np.array([0]), np.array([0]), np.array([-1.0]))


@attrs.frozen
class Embellishes(Widest):
    def finish(self, tree):
        return TokenTree(tokens=tree.tokens, parents=tree.parents, path_logp=tree.path_logp / 2)


@attrs.frozen
class Counts(Widest):
    calls: list[int] = attrs.field(factory=list, init=False)

    def grow(self, tree, candidates, choices):
        self.calls.append(1)
        return Growth(candidates.best(1 + len(self.calls) % 2))


@attrs.define
class Mutable(TreePolicy):
    name = "mutable"
    budget: int = 12

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))


@attrs.frozen
class Unnamed(Widest):
    name = "No Name"


@attrs.frozen
class Demanding(Widest):
    wish: int = attrs.field(kw_only=True)


@attrs.frozen
class Indulges(Widest):
    def begin(self, sequence):
        return attrs.evolve(self, budget=13) if sequence.greedy else self


@attrs.frozen
class Fractional(Widest):
    budget: float = 2.5


@pytest.mark.parametrize("policy", [Widest, Drawn])
def test_a_sound_policy_passes(policy):
    check_tree_policy(policy)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (SaysItIsDeterministic, "other trees than an equal policy"),
        (LikesPadding, "padded candidate"),
        (Overwrites, "read-only"),
        (Overspends, "its draft_budget is 12"),
        (Invents, "had not drafted"),
        (Embellishes, "had not drafted"),
        (Counts, "another tree when asked again"),
        (Unnamed, "'No Name'"),
        (lambda: Demanding(wish=1), "without a default: wish"),
        (Fractional, "a budget of 2.5"),
        (Indulges, "a budget of 13 nodes from begin; its own is 12"),
        (Mutable, "frozen class"),
        (dict, "is not a TreePolicy"),
    ],
)
def test_a_broken_policy_is_refused_in_words(make, complaint):
    with pytest.raises((AssertionError, PluginError), match=complaint):
        check_tree_policy(make)


@given(draft_trees(max_nodes=12, vocab_size=2))
def test_siblings_in_random_trees_hold_different_tokens(tree):
    assert len(set(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))) == len(tree)
    assert tree.tokens.max() < 2


@attrs.frozen
class Plans(ForestPlanner):
    """The best token, and the next best where nothing of the round before was accepted."""

    name = "plans"
    budget: int = 3
    planned: Any = attrs.field(default=lambda length: TreePlan(Chain(length)), eq=False)
    length: list[int] = attrs.field(init=False, eq=False, factory=lambda: [2])

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1), frontier=None if len(tree) < self.length[0] else np.arange(0))

    def plan(self):
        return self.planned(self.length[0])

    def observe(self, round_):
        self.length[0] = 2 if round_.accepted else 1


PLANS = {
    "drafts another tree than it plans": lambda length: TreePlan(Chain(1)),
    "plans trees of 'widest', which is no ForestGrower": lambda length: TreePlan(Widest(3)),
    "plans another tree than its equal": lambda length: TreePlan(Chain(length), depth=int(next(NUMBERS))),
}
NUMBERS = itertools.count(2)


def test_a_policy_drafts_the_trees_that_it_plans():
    for right in (lambda length: TreePlan(Chain(length)), lambda length: TreePlan(Chain(2), length), lambda _: None):
        check_tree_policy(lambda planned=right: Plans(planned=planned), max_examples=20)
    for wrong, planned in PLANS.items():
        with pytest.raises(AssertionError, match=f"'plans' .* {wrong}"):
            check_tree_policy(lambda planned=planned: Plans(planned=planned))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (lambda _: "talon", "gave 'talon' as its plan; it must be a TreePlan, or None"),
        (lambda _: TreePlan("talon"), "in plan: the policy of a TreePlan is 'talon'; it must be a TreePolicy"),
        (lambda _: TreePlan(Chain(1), "2"), "the depth of a TreePlan is '2'; it must be a whole number, or None"),
        (lambda _: TreePlan(Chain(1), -1), "the depth of a TreePlan is -1; it must be at least 0"),
    ],
)
def test_what_is_no_plan_is_named(plan, said):
    with pytest.raises(PluginError, match=rf"tree policy 'plans' .*{said}"):
        check_tree_policy(lambda: Plans(planned=plan))


@pytest.mark.parametrize("hooks", ["grow", ("grows",), (1,), None])
def test_hooks_are_names_of_methods(monkeypatch, hooks):
    monkeypatch.setattr(Chain, "hooks", hooks)
    with pytest.raises(AssertionError, match=r"'chain' .* has hooks .*; it must be a tuple of the names of its"):
        check_tree_policy(lambda: Chain(2))


TWO = Chains(9, 1, (-math.inf, -math.inf), (-math.inf, -math.inf))


@attrs.frozen
class SaysAnother(Chain):
    """Draws a chain of two, whatever it says."""

    name = "says-another"
    said: Chains = TWO

    def chains(self):
        return self.said

    def chain_came(self, logp, nodes):
        pass


@attrs.frozen
class LearnsAnother(Chain):
    """Says something else once a chain came that it was not asked for."""

    name = "learns-another"
    came: list[int] = attrs.field(factory=list, init=False, eq=False)

    def chains(self):
        return None if self.came else TWO

    def chain_came(self, logp, nodes):
        self.came.append(nodes)


@pytest.mark.parametrize(
    "chains",
    [
        Chains(9, 1, (-math.inf,), (-math.inf,)),
        Chains(9, 2, (-0.1, -math.inf), (-math.inf, -math.inf)),
        Chains(9, 1, (-math.inf, -math.inf), (-0.1, -math.inf)),
    ],
    ids=["shorter", "joins", "goes on"],
)
def test_a_policy_that_draws_other_chains_than_it_says_is_refused(chains):
    with pytest.raises(AssertionError, match=r"'says-another' .* drafts another tree than the chain that it has said"):
        check_tree_policy(lambda: SaysAnother(2, said=chains))


def test_a_policy_that_learns_other_things_of_chains_that_came_is_refused():
    with pytest.raises(
        AssertionError, match=r"'learns-another' .* says other chains than an equal policy that was given"
    ):
        check_tree_policy(lambda: LearnsAnother(2))


@attrs.frozen
class Ends(Plans):
    """A chain of three, which ends after a token that is likely, for as many more as `late` says."""

    name = "ends"
    budget: int = 4
    late: int = 0

    def grow(self, tree, candidates, choices):
        likely = len(tree) > self.late and candidates.logp[0, 0] > -0.5
        return Growth(candidates.best(1), frontier=np.arange(0) if likely else None)

    def plan(self):
        return TreePlan(Chain(3))

    def ends_after(self, layers):
        likely = (layer.measured(best_of_rows)[0] > -0.5 for layer in layers)
        return next((depth for depth, one in enumerate(likely, 1) if one), None)


def best_of_rows(logp):
    return logp[:, 0]


@pytest.mark.usefixtures("unshrunk")
def test_a_policy_may_end_the_trees_that_it_plans_by_what_was_offered():
    check_tree_policy(Ends, max_examples=20)
    with pytest.raises(AssertionError, match=r"'ends' .* drafts another tree than it plans"):
        check_tree_policy(lambda: Ends(late=1))


def test_a_tree_that_ends_early_is_drafted_once(monkeypatch):
    begun = {"grow": 0, "ends_after": 0}

    @attrs.frozen
    class Counting(Chain):
        def grow(self, tree, candidates, choices):
            begun["grow"] += len(tree) == 1
            return super().grow(tree, candidates, choices)

        def grow_forest(self, forest, candidates):
            return super().grow_forest(forest, candidates)

    @attrs.frozen
    class EndsOnce(Ends):
        def plan(self):
            return TreePlan(Counting(3))

        def ends_after(self, layers):
            begun["ends_after"] += 1
            return super().ends_after(layers)

    check_tree_policy(EndsOnce, max_examples=20)
    assert 0 < begun["grow"] <= begun["ends_after"]


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize("late", [0, 1])
def test_a_tree_that_ends_early_is_selected_from_as_it_is_then(late):
    @attrs.frozen
    class LastOnly(Chain):
        """A chain of which the last token is left out."""

        def finish(self, tree):
            return tree.keep(np.arange(max(len(tree) - 1, 1)))

        def finish_forest(self, forest):
            raise AssertionError("nobody asks")

    @attrs.frozen
    class EndsShorter(Ends):
        def finish(self, tree):
            return tree.keep(np.arange(max(len(tree) - 1, 1)))

        def plan(self):
            return TreePlan(LastOnly(3))

    if not late:
        check_tree_policy(EndsShorter, max_examples=20)
    else:
        with pytest.raises(AssertionError, match="drafts another tree than it plans"):
            check_tree_policy(lambda: EndsShorter(late=late))


@pytest.mark.parametrize(
    ("depth", "ended", "left"), [(None, None, None), (None, 2, 2), (3, 2, 2), (2, 3, 2), (2, None, 2)]
)
def test_a_plan_ends_where_the_first_of_two_limits_is(depth, ended, left):
    assert TreePlan(Chain(3), depth).ended(ended) == TreePlan(Chain(3), left)


def test_a_subclass_with_other_trees_does_not_plan():
    @attrs.frozen
    class Never(Plans):
        def grow(self, tree, candidates, choices):
            return Growth(np.arange(0))

    assert forest_planner(Plans()) is not None
    assert forest_planner(Never()) is None


@pytest.mark.parametrize("policy", [AdaEdl, GammaTune, GammaTunePlus, Heuristic, SpecDecPlusPlus, SpecKV])
def test_a_chain_that_stops_elsewhere_does_not_plan(policy):
    @attrs.frozen
    class Elsewhere(policy):
        def stops(self, tree, candidates):
            return len(tree) > 1

    assert forest_planner(policy()) is not None
    assert forest_planner(Elsewhere()) is None


@attrs.frozen
class OtherInForests(Talon):
    """Leaves its gate out where trees grow together."""

    name = "other-in-forests"

    def grow_forest(self, forest, candidates):
        return ForestGrowth(candidates.best(self.budget - forest.sizes))


@attrs.frozen
class DeafToLength(CaDDTree):
    """Takes all texts to be short where their trees grow together."""

    name = "deaf-to-length"

    def grow_forest(self, forest, candidates):
        return super().grow_forest(attrs.evolve(forest, contexts=np.ones(forest.size, dtype=np.int64)), candidates)


class OtherDraws(SampledChain):
    """Draws at another temperature in forests than by itself."""

    name = "other-draws"

    def draw_forest(self, forest, candidates, laws):
        drawn = laws.drawing(2.0 * self.temperature)
        drawn.draw(np.arange(len(candidates.frontier)))
        return ForestGrowth(np.arange(0), drawn=drawn)


def test_a_policy_that_draws_other_trees_in_forests_is_refused():
    with pytest.raises(AssertionError, match=r"'other-draws' .* draws another tree in a forest than by itself"):
        check_tree_policy(lambda: OtherDraws(2))


@pytest.mark.parametrize("policy", [OtherInForests, DeafToLength])
def test_a_policy_that_grows_other_trees_in_forests_is_refused(policy):
    with pytest.raises(AssertionError, match=rf"'{policy.name}' .* grows another tree in a forest than by itself"):
        check_tree_policy(policy)


@attrs.define(eq=False)
class Accepted:
    """Of the round before."""

    count: int = 0


@attrs.frozen
class AsMany(ForestLearner):
    """As many tokens a layer as were accepted in the round before, and one more."""

    name = "as-many"
    budget: int = 7
    wrong: str = ""
    accepted: Accepted = attrs.field(init=False, eq=False, factory=Accepted)

    def width(self, tree):
        return 2 + self.accepted.count % 2

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(min(1 + self.accepted.count, self.budget - len(tree))))

    def observe(self, round_):
        self.accepted.count = round_.accepted

    def beside(self, policies):
        return policies if self.wrong == "beside" else AsManyOfEach(policies)


class AsManyOfEach(LearningForest):
    """The same of several texts."""

    def __init__(self, policies):
        self.policies, self.wrong = policies, policies[0].wrong
        self.accepted = np.array([one.accepted.count for one in policies])

    def widths(self, forest, trees):
        if self.wrong == "widths":
            return np.ones(len(trees) + 1, dtype=int)
        return 2 + self.accepted[trees] % 2

    def grow_forest(self, forest, candidates):
        more = 2 if self.wrong == "grow_forest" else 1
        return ForestGrowth(candidates.best(np.minimum(more + self.accepted, self.policies[0].budget - forest.sizes)))

    def observe_forest(self, round_):
        accepted = np.bincount(round_.forest.trees[round_.accepted], minlength=len(self.policies)) - 1
        had = True if self.wrong == "no round" else round_.new > 0
        if self.wrong != "observe_forest":
            self.accepted = np.where(had, accepted, self.accepted)

    def hand_back(self):
        for policy, count in zip(self.policies, self.accepted.tolist(), strict=True):
            policy.accepted.count = count


@pytest.mark.usefixtures("unshrunk")
def test_a_policy_that_learns_chooses_beside_others_as_by_itself():
    check_tree_policy(AsMany, max_examples=30)
    for wrong in ("grow_forest", "observe_forest", "no round"):
        with pytest.raises(AssertionError, match=r"'as-many' .* grows another tree beside those of other texts"):
            check_tree_policy(lambda wrong=wrong: AsMany(wrong=wrong))


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("beside", r"gave .* from beside; it must be a LearningForest"),
        ("widths", "returned widths of shape .* one for all trees or for each of"),
    ],
)
def test_what_answers_wrongly_for_policies_side_by_side_is_named(wrong, said):
    with pytest.raises(PluginError, match=rf"tree policy 'as-many' .*{said}"):
        check_tree_policy(lambda: AsMany(wrong=wrong))


@attrs.frozen
class AsManyAndMore(AsMany):
    """Changes what is chosen for one tree alone."""

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(min(2 + self.accepted.count, self.budget - len(tree))))


def test_a_subclass_that_changes_what_one_tree_is_is_asked_by_itself():
    assert forest_learner(AsMany()) is not None
    assert forest_learner(AsManyAndMore()) is None
    check_tree_policy(AsManyAndMore, max_examples=10)
    assert forest_learners([AsMany(), AsMany(budget=8)]) is None
