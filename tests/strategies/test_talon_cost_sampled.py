import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices, enumerate_outcomes
from talon_core.drawn import Drawn, sharpened, without
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.policy import SequenceInfo
from talon_core.rounds import Round
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_core.testing.strategies import laws, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import Hybrid, TalonCost, TalonCostSampled
from talon_strategies.draws_learnt import expected_of_draws
from talon_strategies.learnt import ENOUGH
from talon_strategies.talon_cost_sampled import groups
from talon_tests.prices import Prices, PricesOfChains


def served(policy, costs, temperature=1.0):
    return policy.begin(SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=temperature, costs=costs))


@pytest.mark.parametrize("options", [{}, {"budget": 2}, {"budget": 9, "depth": 1}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: TalonCostSampled(**options), max_examples=15)


def test_a_worked_example_of_groups():
    # Of one node: 0.4 fixed or 0.5 drawn. Of two: 0.7 fixed, or 0.4 and a draw of 0.35. Of three: 0.9 or 0.7 and 0.1.
    gains, with_draw = groups(np.array([[0.4, 0.3, 0.2]]), np.array([[0.5, 0.35, 0.1]]))
    assert with_draw.tolist() == [[True, True, False]]
    assert gains[0] == pytest.approx([0.5, 0.25, 0.15])


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6), st.data())
def test_a_group_is_worth_its_best_nodes_with_or_without_a_draw(prob, data):
    fixed = np.sort(prob)[::-1] / max(1.0, sum(prob))
    draws = np.array(data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(prob), max_size=len(prob))))
    gains, with_draw = groups(fixed[None], draws[None])
    assert (np.diff(gains[0]) <= 1e-12).all()
    best = 0.0
    for size in range(1, np.count_nonzero(fixed) + 1):
        worth = max(fixed[:size].sum(), fixed[: size - 1].sum() + draws[size - 1])
        best = max(best, worth)
        assert gains[0, :size].sum() <= best + 1e-12
        if with_draw[0, size - 1]:
            assert worth == pytest.approx(fixed[: size - 1].sum() + draws[size - 1])
    assert not gains[0, np.count_nonzero(fixed) :].any()


@settings(max_examples=60)
@given(laws(5), laws(5), st.integers(1, 4))
def test_a_fixed_child_is_accepted_as_the_target_has_it_and_a_draw_as_far_as_the_laws_agree(p, q, count):
    best = np.argsort(-q, kind="stable")[: count - 1]
    law = without(q, best)
    if not law.any():
        return

    class Target:
        def at(self, node):
            return p

        def ends(self, token):
            return False

        def draw(self, node, choices):
            return choices.pick(p)

    def tried(choices):
        token = choices.pick(law)
        tokens = [0, *best.tolist(), token]
        tree = TokenTree(tokens, [-1, *[0] * count], np.zeros(count + 1), {0: Drawn([token], law)})
        path = Hybrid().walk(tree, Target(), choices).path
        return int(path[1]) if len(path) > 1 else 0

    reached = np.zeros(count + 1)
    for prob, node in enumerate_outcomes(tried):
        reached[node] += prob
    assert reached[1:count] == pytest.approx(p[best])
    assert reached[count] == pytest.approx(np.minimum(p, law).sum())


def test_what_a_draw_is_expected_to_be_worth():
    # Nothing fixed: 0.1 + 0.8 * 0.5. The best fixed: 0.1 * 0.5 + 0.8 * 0.3. Both: 0.1 * 0.2 + 0.8 * 0.2.
    assert expected_of_draws(np.array([[0.5, 0.3, 0.2]]))[0] == pytest.approx([0.5, 0.29, 0.18])


@settings(max_examples=40)
@given(untied_drafters(9), st.integers(2, 20), st.floats(0.0, 0.3))
def test_a_group_holds_the_best_tokens_and_at_most_one_that_was_drawn_from_the_others(draft, drafter, budget, node):
    policy = served(TalonCostSampled(budget=budget), Prices(node=node, layer=0.01), temperature=1.25)
    tree = draft(policy, drafter).tree
    assert len(tree) <= budget
    for parent in set(tree.parents[1:].tolist()):
        law = drafter.law_after(tree.tokens[tree.path(parent)].tolist())
        children = np.flatnonzero(tree.parents == parent)
        drawn = tree.drawn.get(parent)
        fixed = [tree.tokens[child] for child in children if drawn is None or tree.tokens[child] != drawn.tokens[0]]
        assert set(fixed) == set(np.argsort(-law, kind="stable")[: len(fixed)])
        if drawn is not None:
            assert drawn.law == pytest.approx(without(law, fixed))  # 0.8 of 1.25


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), st.integers(2, 5))
def test_with_its_rule_the_output_has_the_targets_law(rounds_of, drafter, target, budget):
    policy = served(TalonCostSampled(budget=budget, depth=3), Prices(node=0.02, layer=0.01))
    assert (policy.default_rule, policy.children) == (Hybrid.name, "hybrid")
    assert rounds_of(policy, drafter, target).error(Hybrid()) < 1e-12


@settings(deadline=None, max_examples=30)
@given(
    table_drafters(3),
    table_drafters(3),
    st.integers(2, 5),
    st.floats(0.1, 3.0),
    st.tuples(st.floats(-3.0, 3.0), st.floats(0.1, 2.0)),
    st.tuples(st.floats(-3.0, 3.0), st.floats(0.1, 2.0)),
)
def test_so_it_has_whatever_was_learnt(rounds_of, drafter, target, budget, rate, fixed, drawn):
    policy = served(TalonCostSampled(budget=budget, depth=3), Prices(node=0.02, layer=0.01))
    learnt = policy.learnt
    learnt.drafted, learnt.tokens, learnt.passes = ENOUGH + 1, rate, 1.0
    learnt.calibration.line[:], policy.drawing.calibration.line[:] = fixed, drawn
    assert rounds_of(policy, drafter, target).error(Hybrid()) < 1e-12


@given(untied_drafters(9), st.integers(2, 20), st.floats(0.0, 0.3))
def test_a_greedy_request_gets_the_tree_of_talon_cost(draft, drafter, budget, node):
    prices = Prices(node=node, layer=0.01)
    ours, theirs = (
        draft(served(policy(budget=budget, depth=5), prices, temperature=0.0), drafter).tree
        for policy in (TalonCostSampled, TalonCost)
    )
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.parents.tolist() == theirs.parents.tolist()


def observed(policy, drafter, draft, accepted, rounds):
    """Rounds of which the first path is accepted, so many nodes deep; the shares of nodes that were drawn."""
    shares = []
    for _ in range(rounds):
        drafted = draft(policy, drafter)
        tree = drafted.tree
        shares.append(len(tree.drawn) / max(len(tree) - 1, 1))
        path = [0]
        while len(path) <= accepted and path[-1] in tree.drawn:
            path.append(tree.child(path[-1], int(tree.drawn[path[-1]].tokens[0])))
        tokens = np.append(tree.tokens[path[1:]], 99)
        policy.observe(Round(tree, np.array(path), tokens, draft_passes=drafted.draft_passes))
    return shares


def test_draws_that_are_accepted_are_made_more_often_and_others_less(draft):
    drafter = TableDrafter([np.full(12, 1 / 12)])
    prices = Prices(node=0.01, layer=0.001)
    flat = observed(served(TalonCostSampled(budget=8, depth=4), prices), drafter, draft, 9, 12)
    assert flat[-1] == 1.0  # nothing but chains
    never = observed(served(TalonCostSampled(budget=8, depth=4), prices), drafter, draft, 0, 12)
    assert flat[0] == never[0] > never[-1]


def test_it_pauses_where_nothing_pays(draft):
    policy = served(TalonCostSampled(budget=8), Prices(node=0.9, layer=0.5))
    drafter = TableDrafter([np.full(6, 1 / 6)])
    for _ in range(ENOUGH):
        drafted = draft(policy, drafter)
        policy.observe(Round(drafted.tree, np.array([0]), np.array([1]), draft_passes=drafted.draft_passes))
    assert draft(policy, drafter).draft_passes == 0


LAW = [[0.05, 0.9, 0.05], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]]


def chained(likely, temperature=1.0):
    """A policy whose passes are run ahead, for a text in which draws have been accepted so often."""
    told = {"temperature": temperature, "costs": PricesOfChains(0.01), "runs_on": True, "draws_on": True}
    policy = TalonCostSampled().begin(SequenceInfo(5, 1000, **told))
    policy.drawing.seen = np.array([[0.5, likely]])
    return policy


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_chains_are_drawn_where_draws_bring_more(temperature):
    policy = chained(0.95, temperature)
    said = policy.chains()
    assert said.drawn == temperature
    drafted = draft_tree(policy, TableDrafter(LAW), 0, DraftLimits(3, 100), SeededChoices(3))
    tree = drafted.tree
    assert tree.parents.tolist() == [*range(-1, len(tree) - 1)]
    assert [*tree.drawn] == [*range(len(tree) - 1)]
    for node, drawn in tree.drawn.items():
        law = TableDrafter(LAW).law_after(tree.tokens[tree.path(node)].tolist())
        assert drawn.law == pytest.approx(sharpened(law, said.drawn))


def test_chains_are_fixed_where_the_target_cannot_test_draws():
    told = {"temperature": 1.0, "costs": PricesOfChains(0.01), "runs_on": True}
    policy = TalonCostSampled().begin(SequenceInfo(5, 1000, **told))
    policy.drawing.seen = np.array([[0.5, 0.95]])
    assert policy.chains().drawn is None


def test_chains_are_fixed_where_the_best_tokens_bring_more():
    policy = chained(0.01)
    assert policy.chains().drawn is None
    tree = draft_tree(policy, TableDrafter(LAW), 0, DraftLimits(3, 100), SeededChoices(3)).tree
    assert len(tree) > 1
    assert not tree.drawn


def test_greedy_requests_have_the_chains_of_talon_cost():
    greedy = {"temperature": 0.0, "costs": PricesOfChains(0.01), "runs_on": True}
    said = TalonCostSampled().begin(SequenceInfo(5, 1000, **greedy)).chains()
    assert said is not None
    assert said == TalonCost().begin(SequenceInfo(5, 1000, **greedy)).chains()


def test_what_became_of_drawn_chains_is_learnt_behind_the_last_of_them():
    policy = chained(0.95)
    assert policy.chains().drawn is not None
    before = policy.drawing.calibration.line.tolist()
    while not policy.learnt.drafted:
        policy.chains()
        tree = draft_tree(policy, TableDrafter(LAW), 0, DraftLimits(3, 100), SeededChoices(3)).tree
        policy.observe(Round(tree, np.arange(1), np.array([0]), draft_passes=len(tree) - 1, context=9))
    assert policy.drawing.calibration.line[0] < before[0]
    assert policy.learnt.calibration.line.tolist() == [0.0, 1.0]
    assert policy.drawing.seen[-1, 1] < 0.95
