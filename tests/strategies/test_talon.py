import math
from sys import maxsize

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.chains import Chains
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import Talon


def papers_tree(drafter, budget, top_k, mu, least):
    """The paper's definition, over the whole vocabulary, with probabilities, not logarithms; `least` is ours."""
    tree = {(0,): 1.0}
    frontier = [(0,)]
    depth = 0
    while len(tree) < budget:
        scored = {
            (*path, token): tree[path] * prob
            for path in frontier
            for token, prob in enumerate(drafter.law_after(path).tolist())
        }
        ranked = sorted(scored, key=scored.__getitem__, reverse=True)
        values = np.array([scored[path] for path in ranked])
        assume((values[1:] < values[:-1] * (1 - 1e-9)).all())
        if depth == 0:
            new = ranked[:top_k]
        else:
            assume((abs(values / (mu * values[0]) - 1) > 1e-9).all() or mu == 1)
            new = [path for path in ranked if scored[path] >= mu * scored[ranked[0]]]
        assume(not least or (abs(values / least - 1) > 1e-9).all())
        new = [path for path in new if scored[path] >= least][: budget - len(tree)]
        if not new:
            break
        tree |= {path: scored[path] for path in new}
        frontier = new
        depth += 1
    return set(tree)


def test_keeps_the_contract():
    check_tree_policy(Talon, max_examples=30)


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 2},
        {"budget": 2, "least": 0.3},
        {"mu": 1},
        {"mu": 1e-9, "top_k": 1},
        {"budget": 7, "top_k": 100},
        {"least": 0.3},
    ],
)
def test_keeps_the_contract_with_extreme_options(options):
    check_tree_policy(lambda: Talon(**options), max_examples=30)


def test_of_two_nodes_a_tree_is_a_chain_that_may_be_run_ahead_and_larger_ones_are_not_said_to_be():
    said = Talon(budget=2, least=0.3).chains()
    assert said is not None
    assert (said.depth, said.joins) == (1, (math.log(0.3),))
    assert Talon(budget=2).chains() == Chains(maxsize, 1, (-math.inf,), (math.inf,))
    assert Talon(budget=3, top_k=1).chains() is None  # two candidates may pass the gate in its second layer


@given(
    drafter=st.integers(2, 40).flatmap(untied_drafters),
    budget=st.integers(2, 70),
    top_k=st.integers(1, 12),
    mu=st.sampled_from([1e-3, 0.03, 0.3, 1]),
    least=st.sampled_from([0, 0.02, 0.2]),
)
def test_the_best_of_each_parent_give_the_tree_of_the_whole_vocabulary(draft, paths, drafter, budget, top_k, mu, least):
    drafted = draft(Talon(budget=budget, top_k=top_k, mu=mu, least=least), drafter)
    assert paths(drafted.tree) == papers_tree(drafter, budget, top_k, mu, least)


def test_a_tree_worked_out_by_hand(draft, paths):
    drafter = TableDrafter([[0.6, 0.25, 0.15]])  # whatever the path
    first = {(0, 0), (0, 1)}  # .6 and .25, the two best
    second = {(0, 0, 0), (0, 0, 1), (0, 1, 0)}  # .36, .15 and .15; .09 and less do not pass the gate of .4 * .36
    third = {(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0)}  # .216 and three times .09; the gate is .0864
    full = draft(Talon(budget=10, top_k=2, mu=0.4), drafter)
    assert paths(full.tree) == {(0,)} | first | second | third
    cut = draft(Talon(budget=7, top_k=2, mu=0.4), drafter)
    assert paths(cut.tree) == {(0,)} | first | second | {(0, 0, 0, 0)}


def test_a_sure_drafter_is_followed_down_to_the_budget(draft):
    drafted = draft(Talon(budget=60), TableDrafter([[0.0, 1.0, 0.0]]))
    assert drafted.tree.depths.tolist() == list(range(60))


@given(drafter=untied_drafters(30), mu=st.sampled_from([0.01, 0.1, 0.5]))
def test_an_unlikely_path_is_never_expanded(draft, drafter, mu):
    tree = draft(Talon(budget=60, mu=mu), drafter).tree
    for depth in range(2, tree.depths.max() + 1):
        layer = tree.path_logp[tree.depths == depth]
        assert layer.min() >= layer.max() + np.log(mu) - 1e-9


def test_what_is_hardly_ever_taken_is_not_worth_a_node(draft, paths):
    drafter = TableDrafter([[0.6, 0.25, 0.15]])
    tree = draft(Talon(budget=30, top_k=3, mu=0.01, least=0.2), drafter).tree
    # .6 and .25, then .36, then .216; next would be .13, .15 and .15
    assert paths(tree) == {(0,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 0, 0)}
    assert len(draft(Talon(least=0.7), drafter).tree) == 1


@given(drafter=untied_drafters(30), budget=st.integers(2, 64))
def test_the_budget_is_spent_to_the_last_node(draft, drafter, budget):
    assert len(draft(Talon(budget=budget), drafter).tree) == budget


@pytest.mark.parametrize(
    "options", [{"budget": 1}, {"top_k": 0}, {"mu": 0}, {"mu": 1.5}, {"mu": float("nan")}, {"least": 1.0}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Talon(**options)
