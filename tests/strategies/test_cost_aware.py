"""What the policies that know prices have in common."""

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.choices import SeededChoices
from talon_core.costs import MeasuredCosts
from talon_core.engine.drafting import DraftLimits, Wanted, draft_trees
from talon_core.engine.faults import Faults
from talon_core.engine.offers import Offers
from talon_core.forest_grower import forest_grower
from talon_core.policy import SequenceInfo
from talon_core.rounds import Round
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_core.tree import TokenTree
from talon_strategies import Bastion, CaDDTree, OptTree, TalonCost
from talon_strategies.cost_aware import rates, sizes_up_to
from talon_tests.prices import Prices

POLICIES = pytest.mark.parametrize("policy", [CaDDTree, Bastion])


def served(policy, costs):
    return policy.begin(SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=0.0, costs=costs))


@POLICIES
@pytest.mark.parametrize("options", [{}, {"budget": 2}, {"budget": 9, "depth": 1}])
def test_keeps_the_contract(policy, options):
    check_tree_policy(lambda: policy(**options), max_examples=10)


@POLICIES
@given(drafter=st.integers(2, 9).flatmap(untied_drafters), budget=st.integers(2, 10), layer=st.sampled_from([0.0, 0.1]))
def test_with_nodes_free_the_budget_is_used(policy, draft, drafter, budget, layer):
    drafted = draft(served(policy(budget=budget), Prices(node=0.0, layer=layer)), drafter)
    assume(drafted.drafted.path_logp.min() > -25)  # otherwise it does not add to a sum of more than 1
    assert len(drafted.tree) == min(len(drafted.drafted), budget)
    assert layer or len(drafted.tree) == budget


@POLICIES
@given(drafter=st.integers(2, 9).flatmap(untied_drafters), budget=st.integers(2, 40))
def test_dearer_nodes_make_smaller_trees_of_a_layer(policy, draft, drafter, budget):
    drafted = [
        draft(served(policy(budget=budget, depth=1), Prices(node=node, layer=0.1)), drafter)
        for node in (0.0, 0.01, 0.1, 0.5, 1.0, 2.0)
    ]
    assume(drafted[0].drafted.path_logp.min() > -25)  # otherwise it does not add to a sum of more than 1
    sizes = [len(one.tree) for one in drafted]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1  # a node as dear as two passes is never worth it
    assert sizes[0] == min(budget, 1 + drafter.vocab_size)


@POLICIES
def test_dearer_nodes_and_layers_make_smaller_trees(policy, draft):
    drafter = TableDrafter([[0.6, 0.2, 0.15, 0.05], [0.9, 0.05, 0.03, 0.02], [0.4, 0.3, 0.2, 0.1]])
    nodes = [len(draft(served(policy(), Prices(node=node)), drafter).tree) for node in (0, 0.01, 0.1, 0.3, 3)]
    assert nodes[0] == 60
    assert nodes[-1] == 1
    assert nodes == sorted(set(nodes), reverse=True)
    drafted = [draft(served(policy(), Prices(layer=layer)), drafter).drafted for layer in (0, 0.05, 0.3, 1)]
    depths = [int(tree.depths.max()) for tree in drafted]
    assert depths[0] == 8  # below nothing is among the 60 likeliest
    assert depths[-1] == 1  # the first layer is drafted before anybody asks
    assert depths == sorted(set(depths), reverse=True)


@POLICIES
@given(drafter=untied_drafters(4), budget=st.integers(2, 30), depth=st.integers(1, 6))
def test_as_long_as_nothing_is_known_passes_cost_nothing(policy, draft, paths, drafter, budget, depth):
    likeliest = draft(OptTree(budget=budget, depth=depth, delta=0.0), drafter).tree
    assume(likeliest.path_logp.min() > -25)  # otherwise it does not add to a sum of more than 1
    tree = draft(policy(budget=budget, depth=depth), drafter).tree
    assert paths(tree) == paths(likeliest)
    layers_alone = MeasuredCosts()
    layers_alone.drafted(rows=1, width=4, seconds=5.0)
    assert paths(draft(served(policy(budget=budget, depth=depth), layers_alone), drafter).tree) == paths(tree)


@pytest.mark.parametrize("policy", [CaDDTree, Bastion, TalonCost])
def test_as_long_as_nothing_is_known_of_passes_no_seconds_are_added_to_them(policy, draft):
    class Besides(Prices):
        def verify(self, nodes, context, batch=1):
            return None

        def besides(self, drafted):
            return 100.0 if drafted else 1.0

        def beside_layer(self):
            return 100.0

    drafter, shapes = TableDrafter([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]), []
    for costs in (MeasuredCosts(), Besides()):
        own = served(policy(budget=12), costs)
        tree = draft(own, drafter).tree
        shapes.append((tree.tokens.tolist(), own.known.plain, own.known.verifying.tolist(), own.known.drafting))
    assert shapes[0] == shapes[1]


@POLICIES
def test_layers_of_unknown_price_cost_nothing(policy, draft):
    drafter = TableDrafter([[0.9, 0.1]])
    free, unknown = (draft(served(policy(), Prices(0.01, layer)), drafter).drafted for layer in (0.0, None))
    assert len(free) == len(unknown) > 10


@POLICIES
def test_costs_are_asked_once_a_round_at_the_length_of_the_text(policy, draft):
    costs = Prices(node=0.1, layer=0.1)
    own, drafter = served(policy(budget=5), costs), TableDrafter([[0.7, 0.3]])
    draft(own, drafter)
    assert set(costs.asked) == {30}
    tree = TokenTree.root(0)
    own.observe(Round(tree, np.array([0]), np.array([1, 2, 3]), context=30))
    costs.asked.clear()
    draft(own, drafter)
    assert set(costs.asked) == {33}


@POLICIES
def test_the_tree_follows_the_costs_as_they_are_measured(policy, draft):
    costs = MeasuredCosts()
    own, drafter = served(policy(budget=12), costs), TableDrafter([[0.6, 0.25, 0.15]])
    free = draft(own, drafter).tree
    assert len(free) == 12
    costs.verified(nodes=12, context=30, batch=1, seconds=0.05)
    costs.verified(nodes=1, context=30, batch=1, seconds=0.01)
    assert len(draft(own, drafter).tree) < 12
    costs.forget()
    assert draft(own, drafter).tree.tokens.tolist() == free.tokens.tolist()


@POLICIES
def test_trees_grow_together_where_their_prices_depend_on_the_texts_length_alone(policy):
    @attrs.frozen
    class Elsewhere(policy):
        def scored(self, tree, candidates):
            return super().scored(tree, candidates)

    @attrs.frozen
    class Standing(policy):
        stand = 2

    able = served(policy(), Prices(node=0.1, layer=0.1))
    assert forest_grower(able) is able
    assert forest_grower(served(policy(), MeasuredCosts())) is None
    for other in (Elsewhere, Standing):
        assert forest_grower(served(other(), Prices(node=0.1, layer=0.1))) is None


@POLICIES
def test_where_trees_grow_together_prices_are_asked_once_for_each_length_of_text(policy):
    costs, limits, faults = Prices(node=0.1, layer=0.1), DraftLimits(2, max_depth=9), Faults()
    own = served(policy(budget=5), costs)
    wanted = [
        Wanted(slot, own, 0, limits, SeededChoices(0), context, [own]) for slot, context in enumerate([40, 50, 40, 50])
    ]
    for _ in range(2):
        draft_trees(wanted, Offers(TableDrafter([[0.7, 0.3]])), faults, MeasuredCosts(), fewest=4)
    assert not faults
    assert [costs.asked.count(context) for context in (40, 50)] == [5, 5]  # of each size


@POLICIES
def test_prices_of_the_latest_lengths_are_kept_where_trees_grow_together(policy, monkeypatch):
    monkeypatch.setattr("talon_strategies.cost_forests.KEPT", 6)
    costs, limits, faults = Prices(node=0.1, layer=0.1), DraftLimits(2, max_depth=9), Faults()
    own = served(policy(budget=5), costs)
    for first in (40, 43, 46, 40):  # the last ones are asked for once more
        contexts = range(first, first + 4)
        wanted = [
            Wanted(slot, own, 0, limits, SeededChoices(0), context, [own]) for slot, context in enumerate(contexts)
        ]
        draft_trees(wanted, Offers(TableDrafter([[0.7, 0.3]])), faults, MeasuredCosts(), fewest=4)
        assert len(own.forests.prices) <= 6
    assert not faults
    times = [costs.asked.count(context) // 5 for context in range(40, 50)]  # each asks for five sizes
    assert times == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]


@POLICIES
def test_a_layer_is_priced_by_the_candidates_that_are_asked_for(policy, draft):
    widths = []

    class Noting(Prices):
        def draft(self, rows, width):
            widths.append(width)
            return super().draft(rows, width)

    draft(served(policy(budget=12), Noting(node=0.01, layer=0.01)), TableDrafter([[0.7, 0.3]]))
    assert set(widths) == {11}


@POLICIES
def test_a_pass_that_seems_to_take_no_time_breaks_nothing(policy, draft):
    costs = MeasuredCosts()
    costs.verified(nodes=60, context=30, batch=1, seconds=0.0)
    assert 1 <= len(draft(served(policy(), costs), TableDrafter([[0.6, 0.4]])).tree) <= 60


@POLICIES
@pytest.mark.parametrize("options", [{"budget": 1}, {"depth": 0}, {"budget": 2.5}])
def test_options_out_of_range_are_refused(policy, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        policy(**options)


def test_rates_are_expected_tokens_by_seconds():
    found = rates(np.array([0.7, 0.3]), np.array([1.0, 1.0, 1.25]))
    assert found.tolist() == pytest.approx([1.0, 1.7, 1.6])


def test_few_sizes_are_asked_for():
    assert sizes_up_to(1, 2).tolist() == [1]
    assert sizes_up_to(5, 8).tolist() == [1, 2, 3, 4, 5]
    assert sizes_up_to(50, 2).tolist() == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 50]
    assert sizes_up_to(64, 4).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64]


@attrs.frozen
class Blocks(Prices):
    """Passes go by blocks of four rows: the fourth costs nothing more, and the fifth as much as a whole block."""

    def verify(self, nodes, context, batch=1):
        return 1.0 + 0.5 * ((nodes + 3) // 4)


@pytest.mark.parametrize("budget", [12, 64])
def test_nodes_that_cost_nothing_are_seen(budget):
    policy = served(TalonCost(budget=budget), Blocks())
    policy.renew()
    assert policy.known.verifying[:6].tolist() == pytest.approx([1.5, 1.5, 1.5, 1.5, 1.75, 2.0])
