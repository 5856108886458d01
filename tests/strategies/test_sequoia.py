from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, table_drafters, untied_drafters
from talon_strategies import RejectionWithoutReplacement, Sequoia, Traversal
from talon_strategies.sequoia import best_shape

MOST = 7
ACCEPTANCES = (
    st.lists(st.integers(0, 100), min_size=1, max_size=7)
    .filter(any)
    .map(lambda weights: tuple(weight / max(100, sum(weights)) for weight in weights))
)
COSTS = st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0])


@cache
def forests(nodes):
    """Every ordered forest of so many nodes."""
    if nodes == 0:
        return [()]
    return [
        (first, *rest) for own in range(nodes) for first in forests(own) for rest in forests(nodes - 1 - own)
    ]  # the first tree's root, what is below it, and the other trees


SHAPES = [shape for nodes in range(2, MOST + 1) for shape in forests(nodes - 1)]


def size(shape):
    return 1 + sum(map(size, shape))


def depth(shape):
    return max((1 + depth(child) for child in shape), default=0)


def promised(shape, acceptance):
    """Accepted tokens, the bonus token among them, if the b-th child is accepted with its probability."""
    return 1 + sum(
        (acceptance[b] if b < len(acceptance) else 0) * promised(child, acceptance) for b, child in enumerate(shape)
    )


def time(shape, acceptance, draft_cost, node_cost):
    return (depth(shape) * draft_cost + 1 + node_cost * (size(shape) - 1)) / promised(shape, acceptance)


def shape_of(tree, node=0):
    return tuple(shape_of(tree, child) for child in np.flatnonzero(tree.parents == node).tolist())


def cut(shape, most):
    """A shape without the children that a vocabulary is too small for."""
    return tuple(cut(child, most) for child in shape[:most])


def test_there_are_as_many_shapes_as_catalan_counted():
    assert len(SHAPES) == 1 + 2 + 5 + 14 + 42 + 132


def test_keeps_the_contract():
    check_tree_policy(Sequoia, max_examples=40)


@pytest.mark.parametrize(
    "options", [{"budget": 2}, {"budget": 9, "depth": 1}, {"temperature": 0.2}, {"acceptance": "0.2;0.2;0.2;0.2;0.2"}]
)
def test_keeps_the_contract_with_other_options(options):
    check_tree_policy(lambda: Sequoia(**options), max_examples=15)


@settings(max_examples=60)
@given(ACCEPTANCES, st.integers(2, MOST), st.integers(1, MOST))
def test_no_shape_of_the_budget_and_depth_promises_more(acceptance, budget, layers):
    shape = best_shape(budget, layers, acceptance)
    assert size(shape) <= budget
    assert depth(shape) <= layers
    possible = [other for other in SHAPES if size(other) <= budget and depth(other) <= layers]
    assert promised(shape, acceptance) == pytest.approx(max(promised(other, acceptance) for other in possible))


@settings(max_examples=60)
@given(ACCEPTANCES, st.integers(2, MOST), st.integers(1, MOST), COSTS, COSTS)
def test_no_shape_takes_less_time_for_each_accepted_token(acceptance, budget, layers, draft_cost, node_cost):
    shape = best_shape(budget, layers, acceptance, draft_cost, node_cost)
    assert size(shape) <= budget
    assert depth(shape) <= layers
    possible = [other for other in SHAPES if size(other) <= budget and depth(other) <= layers]
    least = min(time(other, acceptance, draft_cost, node_cost) for other in possible)
    assert time(shape, acceptance, draft_cost, node_cost) == pytest.approx(least)


def test_shapes_worked_out_by_hand():
    # .6 and .36 beat the second child's .15, the third level's .216 too; then .15 beats .1296
    assert best_shape(5, 10, (0.6, 0.15)) == ((((),),), ())
    assert best_shape(5, 1, (0.3, 0.3, 0.2, 0.1)) == ((), (), (), ())
    assert best_shape(2, 10, (0.6, 0.15)) == ((),)


def test_what_costs_too_much_is_not_drafted():
    free = best_shape(40, 10, (0.6, 0.15, 0.05))
    dear_layers = best_shape(40, 10, (0.6, 0.15, 0.05), draft_cost=0.5)
    dear_nodes = best_shape(40, 10, (0.6, 0.15, 0.05), node_cost=0.1)
    assert (size(free), depth(free) > depth(dear_layers)) == (40, True)
    assert size(dear_nodes) < 10


@settings(max_examples=40)
@given(untied_drafters(9), st.integers(2, 30), st.integers(1, 6), ACCEPTANCES)
def test_the_shape_is_filled(draft, drafter, budget, layers, acceptance):
    policy = Sequoia(budget=budget, depth=layers, acceptance=acceptance, temperature=1.0)
    drafted = draft(policy, drafter)
    assert shape_of(drafted.tree) == policy.shape
    assert drafted.drafted is drafted.tree
    for node, drawn in drafted.tree.drawn.items():
        assert not drawn.replacement
        assert drawn.tokens.tolist() == drafted.tree.tokens[drafted.tree.parents == node].tolist()
        assert drawn.law.tolist() == drafter.law_after(drafted.tree.tokens[drafted.tree.path(node)]).tolist()


@settings(max_examples=30)
@given(untied_drafters(3), st.integers(2, 30))
def test_where_the_law_runs_out_of_tokens_the_last_children_are_missing(draft, drafter, budget):
    policy = Sequoia(budget=budget, acceptance=(0.3, 0.25, 0.2, 0.15))
    assert shape_of(draft(policy, drafter).tree) == cut(policy.shape, 3)


def test_tokens_are_drawn_at_the_temperature(draft):
    law = np.array([0.5, 0.3, 0.2])
    tree = draft(Sequoia(budget=4, temperature=0.5), TableDrafter([law])).tree
    assert tree.drawn[0].law == pytest.approx(law**2 / (law**2).sum())


@settings(deadline=None, max_examples=15)
@given(table_drafters(3), table_drafters(3), st.sampled_from([Traversal(), RejectionWithoutReplacement()]))
def test_with_its_rules_the_output_has_the_targets_law(rounds_of, drafter, target, rule):
    policy = Sequoia(budget=5, depth=3, acceptance=(0.5, 0.2, 0.1))
    assert rounds_of(policy, drafter, target).error(rule) < 1e-12


def test_its_default_rule_is_traversal():
    assert (Sequoia.default_rule, Sequoia.children) == (Traversal.name, "without-replacement")


def test_a_deeper_tree_than_the_budget_allows_costs_no_time():
    assert best_shape(4, 10**9, (0.9, 0.05)) == ((((),),),)


def test_text_and_numbers_say_the_same():
    assert (
        Sequoia(acceptance="0.5;0.25") == Sequoia(acceptance=[0.5, 0.25]) == Sequoia(acceptance=np.array([0.5, 0.25]))
    )


@pytest.mark.parametrize("acceptance", ["", "0.5;", "half"])
def test_text_that_is_no_list_of_numbers_is_refused_in_words(acceptance):
    with pytest.raises(ValueError, match=rf"^acceptance is '{acceptance}'; it must be numbers with ; between them"):
        Sequoia(acceptance=acceptance)


@pytest.mark.parametrize("acceptance", [(), "0.6;0.5", "-0.1", "nan", "0;0", ["0.5"], [None], 0.5, None])
def test_what_are_no_probabilities_is_refused_in_words(acceptance):
    with pytest.raises(
        ValueError, match=r"^acceptance is .*; it must be probabilities of more than 0 and at most 1 tog"
    ):
        Sequoia(acceptance=acceptance)


@pytest.mark.parametrize(
    "options",
    [{"budget": 1}, {"depth": 0}, {"draft_cost": -0.1}, {"node_cost": -1}, {"temperature": 0}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Sequoia(**options)
