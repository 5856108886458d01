"""Slots whose policies can choose for many trees at once get the trees that each of them gets alone."""

from collections.abc import Mapping, Sequence
from itertools import count

import attrs
import numpy as np
import pytest

from talon_core.candidates import Candidates
from talon_core.choices import SeededChoices
from talon_core.costs import Costs, MeasuredCosts
from talon_core.drafter import Drafter, Frontier, Proposed
from talon_core.drawn import Drawn
from talon_core.engine.checked_policy import checked_growers
from talon_core.engine.drafting import Drafted, DraftLimits, Wanted, draft_tree, draft_trees
from talon_core.engine.engine import Engine
from talon_core.engine.faults import Faults
from talon_core.engine.offers import Offers
from talon_core.errors import PluginError
from talon_core.forest import Forest, ForestCandidates
from talon_core.forest_grower import ForestGrowth
from talon_core.forest_learner import Together
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.request import Request
from talon_core.rounds import Round, seconds_together
from talon_core.table import TableDrafter, TableTarget
from talon_strategies import Chain, Eagle2, Heuristic, Match, StaticTree, Talon, TalonCost, TalonCostSampled
from talon_strategies.talon_cost_forests import TalonCostForest
from talon_tests.prices import PricesByLength

VOCAB = 30
LAWS = TableDrafter(np.random.default_rng(0).dirichlet(np.full(VOCAB, 0.3), 17))


def growers(policy: TreePolicy) -> tuple[Together, ...]:
    return checked_growers(policy, None)


def wanted(policies: Sequence[TreePolicy], deepest: int = 9) -> list[Wanted]:
    """Trees of all depths and roots; one of them is an end."""
    limits = [DraftLimits(VOCAB, deepest - place % 4, frozenset({5})) for place in range(len(policies))]
    return [
        Wanted(
            3 * place, policy, place % VOCAB, own, SeededChoices(0), 100 * (place % 7), checked_growers(policy, None)
        )
        for place, (policy, own) in enumerate(zip(policies, limits, strict=True))
    ]


def drafted(asked: Sequence[Wanted], drafter: Drafter = LAWS, fewest: int = 1) -> tuple[dict[int, Drafted], Faults]:
    faults = Faults()
    return draft_trees(asked, Offers(drafter), faults, MeasuredCosts(), fewest=fewest), faults


def same(one: Drafted, other: Drafted) -> bool:
    names = ("tokens", "parents", "path_logp", "depths")
    pairs = (one.tree, other.tree), (one.drafted, other.drafted)
    return all(np.array_equal(getattr(mine, name), getattr(theirs, name)) for mine, theirs in pairs for name in names)


POLICIES = (Talon(budget=20), Talon(least=0.01), Chain(4), Eagle2(budget=12, depth=3, top_k=4), StaticTree())


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_trees_are_those_of_each_slot_alone(policy: TreePolicy) -> None:
    asked = wanted([policy] * 17)
    found, faults = drafted(asked)
    assert not faults
    for one in asked:
        alone = draft_tree(one.policy, LAWS, one.root, one.limits, one.choices)
        assert same(found[one.slot], alone)
        assert found[one.slot].draft_passes == max(each.draft_passes for each in found.values())
        assert (found[one.slot].tree is found[one.slot].drafted) == (alone.tree is alone.drafted)


def test_policies_of_several_kinds_share_the_drafters_passes() -> None:
    kinds = (Talon(budget=20), Heuristic(), Chain(4), Talon(budget=9))
    asked = wanted([kinds[place % 4] for place in range(18)])
    found, faults = drafted(asked, fewest=4)
    assert not faults
    assert [*sorted(found)] == [one.slot for one in asked]
    for one in asked:
        assert same(found[one.slot], draft_tree(one.policy, LAWS, one.root, one.limits, one.choices))


def test_each_slot_has_its_share_of_the_time() -> None:
    """Of a clock that goes on by a second whenever it is looked at: a call of the policy takes one."""
    asked, ticks = wanted([Talon()] * 5), count()
    found = draft_trees(asked, Offers(LAWS), Faults(), MeasuredCosts(), lambda: float(next(ticks)), fewest=1)
    of_policy = [[span for span in one.spans if span.part == "policy"] for one in found.values()]
    calls = len(of_policy[0])
    assert calls > 4
    assert [sum(span.seconds for span in own) for own in of_policy] == pytest.approx([calls / 5] * 5)
    layers = [span for span in found[0].spans if span.part == "draft"]
    assert len(layers) > 1
    assert all(span.seconds == 1.0 for span in layers)
    assert seconds_together(one.spans for one in found.values()) == pytest.approx(calls + len(layers))


@attrs.frozen(eq=False)
class Broken(Drafter):
    """Answers one slot in a wrong way, or in an unusual one that is right."""

    how: str
    max_depth = None

    def open(self, slot: int, prompt: object, room: int) -> None:
        """It needs no prompt."""

    def commit(self, committed: object) -> None:
        """It remembers nothing."""

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        if self.how == "fails":
            raise KeyError("oh")
        given = list(LAWS.propose(frontiers).candidates)
        for place, one in enumerate(frontiers):
            if one.slot == 6:
                given[place] = self.changed(given[place])
        return Proposed(given)

    def changed(self, given: Candidates) -> Candidates:
        tokens, logp = given.tokens.copy(), given.logp.copy()
        rounded = np.where(logp == logp.max(), 1e-5, logp)
        changes: Mapping[str, Mapping[str, object]] = {
            "another token": {"tokens": np.where(np.arange(tokens.shape[1]) == 1, 99, tokens)},
            "twice": {"tokens": np.where(np.arange(tokens.shape[1]) == 1, tokens[:, :1], tokens)},
            "rising": {"logp": logp[:, ::-1], "path_logp": given.path_logp[:, ::-1]},
            "not a number": {"logp": np.full(logp.shape, np.nan)},
            "no paths": {"path_logp": given.path_logp - 5.0},
            "no array": {"tokens": tokens.tolist()},
            "another shape": {"tokens": tokens[:, :1]},
            "another node": {"frontier": given.frontier + 1},
            "small numbers": {"logp": logp.astype(np.float32), "tokens": tokens.astype(np.int32)},
            "above 0": {"logp": rounded, "path_logp": given.path_logp - logp + rounded},
        }
        own = {"frontier": given.frontier, "tokens": tokens, "logp": logp, "path_logp": given.path_logp}
        return Candidates(**{**own, **changes[self.how]})  # type: ignore[arg-type]


WRONG = ("another token", "twice", "rising", "not a number", "no paths", "no array", "another shape", "another node")


@pytest.mark.parametrize("how", WRONG)
def test_what_a_drafter_answers_wrongly_to_one_slot_ends_that_one_alone(how: str) -> None:
    asked = wanted([Talon()] * 7)
    found, faults = drafted(asked, Broken(how))
    with pytest.raises(PluginError) as alone:
        draft_tree(asked[2].policy, Offering(how), asked[2].root, asked[2].limits, asked[2].choices)
    assert {slot: str(error) for slot, error in faults.items()} == {6: str(alone.value).replace("Offering", "Broken")}
    assert [*sorted(found)] == [slot for slot in range(0, 21, 3) if slot != 6]
    for one in asked:
        if one.slot != 6:
            assert same(found[one.slot], draft_tree(one.policy, LAWS, one.root, one.limits, one.choices))


class Offering(Broken):
    """The same for slot 0."""

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        return Proposed([self.changed(*LAWS.propose(frontiers).candidates)])


@pytest.mark.parametrize("how", ["small numbers", "above 0"])
def test_unusual_answers_that_are_right_are_taken(how: str) -> None:
    found, faults = drafted(wanted([Talon()] * 7), Broken(how))
    assert not faults
    assert all(len(one.tree) > 1 for slot, one in found.items() if slot != 15)


def test_a_drafter_that_fails_ends_all() -> None:
    found, faults = drafted(wanted([Talon()] * 5), Broken("fails"))
    assert not found
    assert len(faults) == 5


@attrs.frozen
class Odd(Talon):
    """Is wrong about the third tree, or fails altogether."""

    name = "odd"
    how: str = "twice"

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        if self.how == "fails":
            raise KeyError("oh")
        growth = super().grow_forest(forest, candidates)
        own = growth.chosen[candidates.trees_of(growth.chosen) == 2]
        return ForestGrowth(np.concatenate([growth.chosen, own[:1]]))


def test_what_a_policy_answers_wrongly_for_one_slot_ends_that_one_alone() -> None:
    asked = wanted([Odd()] * 5)
    found, faults = drafted(asked)
    assert [*faults] == [6]
    assert "tree policy 'odd'" in str(faults[6])
    assert "chose the same candidate twice" in str(faults[6])
    assert [*sorted(found)] == [0, 3, 9, 12]
    found, faults = drafted(wanted([Odd(how="fails")] * 5))
    assert not found
    assert {str(error) for error in faults.values()} == {str(faults[0])}
    assert "raised KeyError in grow_forest: 'oh'" in str(faults[0])


def test_few_trees_are_grown_one_by_one() -> None:
    found, faults = drafted(wanted([Odd()] * 5), fewest=6)
    assert not faults
    assert len(found) == 5


def test_draws_are_shown_where_they_were_made() -> None:
    class Looking(Offers):
        def ask(
            self, frontiers: Sequence[Frontier], draws: Sequence[Mapping[int, Drawn]]
        ) -> tuple[Sequence[Candidates], int]:
            assert len(draws) == len(frontiers)
            return super().ask(frontiers, draws)

    faults = Faults()
    draft_trees(wanted([Talon()] * 4), Looking(LAWS), faults, MeasuredCosts(), fewest=2)
    assert not faults


def begun(policy: TreePolicy, costs: Costs, count: int) -> list[TreePolicy]:
    """Policies of texts of several lengths, which share a machine."""
    machine: dict[str, object] = {}
    told = [SequenceInfo(100 * (place % 7) + 5, 99, 0.0, costs, machine, unread=place) for place in range(count)]
    return [policy.begin(one) for one in told]


def round_of(drafted: Drafted, context: int, place: int) -> Round:
    """What became of a tree: the path to one of its nodes was accepted."""
    path = drafted.tree.path(7 * place % len(drafted.tree))
    tokens = np.append(drafted.tree.tokens[path[1:]], 1)
    return Round(drafted.tree, path, tokens, context=context)


@pytest.mark.parametrize("costs", [PricesByLength(), MeasuredCosts()], ids=["priced", "unknown"])
@pytest.mark.parametrize("policy", [TalonCost(), TalonCost(budget=9, depth=3), TalonCostSampled()], ids=repr)
def test_slots_whose_policies_learn_get_the_trees_of_each_alone(policy: TreePolicy, costs: Costs) -> None:
    together, alone = begun(policy, costs, 17), begun(policy, costs, 17)
    sizes = set()
    for _ in range(9):
        asked = wanted(together)
        found, faults = drafted(asked)
        assert not faults
        for place, (one, other) in enumerate(zip(asked, alone, strict=True)):
            own = draft_tree(other, LAWS, one.root, one.limits, one.choices)
            assert same(found[one.slot], own)
            assert (found[one.slot].tree is found[one.slot].drafted) == (own.tree is own.drafted)
            sizes.add(len(own.tree))
            for told in (one.policy, other):
                told.observe(round_of(own, one.context + 5, place))
    assert len(sizes) > 2


@pytest.mark.parametrize("how", WRONG)
def test_a_drafter_that_is_wrong_for_one_of_them_ends_that_one_alone(how: str) -> None:
    asked = wanted(begun(TalonCost(), PricesByLength(), 7))
    found, faults = drafted(asked, Broken(how))
    assert [*faults] == [6]
    assert [*sorted(found)] == [slot for slot in range(0, 21, 3) if slot != 6]
    for one, other in zip(asked, begun(TalonCost(), PricesByLength(), 7), strict=True):
        if one.slot != 6:
            assert same(found[one.slot], draft_tree(other, LAWS, one.root, one.limits, one.choices))


@attrs.frozen
class Counted(TalonCost):
    """Counts how often it is asked with so many others, or is asked by itself."""

    asked: list[int] = attrs.field(factory=list, eq=False)
    alone: bool = False

    def beside(self, policies: Sequence[TalonCost]) -> TalonCostForest:
        self.asked.append(len(policies))
        return super().beside(policies)

    def goes_with(self, other: TreePolicy) -> bool:
        return not self.alone and super().goes_with(other)


def rounds_of(policy: TreePolicy) -> list[list[tuple[object, ...]]]:
    """What an engine decodes for 20 requests of several lengths, round by round."""
    logits = np.log(np.random.default_rng(1).dirichlet(np.full(9, 0.2), 9))
    drafter = TableDrafter(np.exp(logits) * 0.9 + 0.1 / 9)
    engine = Engine(TableTarget(logits), Match(), policy, drafter, costs=PricesByLength(), allocator=None)
    sequences = [engine.submit(Request(np.array([place % 9, 1]), 20 + place)) for place in range(20)]
    while not all(one.finished for one in sequences):
        engine.step()
    return [
        [(one.tree.tokens.tolist(), one.tree.parents.tolist(), one.tokens.tolist()) for one in each.rounds]
        for each in sequences
    ]


def test_an_engine_has_the_same_rounds_where_slots_are_asked_together() -> None:
    together, alone = Counted(), Counted(alone=True)
    assert rounds_of(together) == rounds_of(alone)
    assert max(together.asked) == 20
    assert not alone.asked
