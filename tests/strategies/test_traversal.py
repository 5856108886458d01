from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices
from talon_core.drawn import Drawn
from talon_core.testing import TableDrafter, TableLaws, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import Block, RejectionWithoutReplacement, Traversal

RULE, DOWNWARDS = Traversal(), RejectionWithoutReplacement()
CHAINS = st.sampled_from([(), ((),), (((),),), ((((),),),)])
BUSHES = [((), (), ()), (((),), ()), (((), ()), ((),)), (((), ()), ((), ()), ())]
SHAPES = CHAINS | st.sampled_from(BUSHES)
CHAINS_UNDER_THE_ROOT = st.sampled_from([((), ()), (((),), ()), (((),), ((),)), ((((),),), (), ())])
NUMBERS = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None, max_examples=60)
@given(table_drafters(3), table_drafters(3), SHAPES, st.none() | st.integers(0, 2))
@example(TableDrafter([[0.5, 0.5, 1e-300]]), TableDrafter([[0.5, 0.5, 0.0]]), BUSHES[2], None)
@example(TableDrafter([[0.25, 0.75, 0.0]]), TableDrafter([[0.25, 0.75 - 1e-16, 1e-16]]), BUSHES[2], None)
def test_the_output_has_the_targets_law_over_all_draws(rounds, drafter, target, shape, end):
    assert rounds(drafter, target, "without-replacement", shape, end).error(RULE) < 1e-12


def test_it_is_not_exact_for_independent_children(rounds):
    drafter, target = TableDrafter([[0.1, 0.3, 0.6]]), TableDrafter([[0.5, 0.4, 0.1]])
    assert rounds(drafter, target, "iid", ((), ())).error(RULE, length=1) > 0.01


def difference(both, one, other):
    """How far the laws of two rules are apart: the probability of each tree with what is accepted of it."""
    found = defaultdict(float)
    for rule, sign in ((one, 1), (other, -1)):
        for walk in both.walks(rule):
            text = (*walk.tree.tokens.tolist(), *walk.accepted.path.tolist(), walk.accepted.token)
            found[text] += sign * walk.prob
    return max(map(abs, found.values()))


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), CHAINS, st.none() | st.integers(0, 2))
def test_for_a_chain_it_is_block(rounds, drafter, target, shape, end):
    both = rounds(drafter, target, "sampled-chain", shape, end)
    assert difference(both, RULE, Block()) < 1e-12


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), st.sampled_from([((),), ((), ()), ((), (), ())]))
def test_for_a_single_layer_it_is_rrsw(rounds, drafter, target, shape):
    both = rounds(drafter, target, "without-replacement", shape)
    assert difference(both, RULE, DOWNWARDS) < 1e-12


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS)
def test_at_temperature_0_the_longest_argmax_path_is_accepted_and_nothing_beside_it_is_looked_at(
    walk_whatever, greedy, greedy_path, drafter, target, shape, numbers
):
    tree, accepted, visited = walk_whatever(RULE, drafter, greedy(target), "without-replacement", shape, numbers)
    assert (accepted.path.tolist(), accepted.token) == greedy_path(tree, greedy(target))
    assert visited == accepted.path.tolist()


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS, st.none() | st.integers(0, 3))
def test_whatever_comes_out_each_law_is_asked_for_once_and_none_after_a_token_that_ends_the_text(
    walk_whatever, drafter, target, shape, numbers, end
):
    tree, _, visited = walk_whatever(RULE, drafter, target, "without-replacement", shape, numbers, end)
    assert len(set(visited)) == len(visited)
    assert all(end not in tree.tokens[tree.path(node)[1:]] for node in visited)


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), CHAINS_UNDER_THE_ROOT)
def test_where_only_the_root_branches_it_accepts_at_least_as_much_as_rrsw(rounds, drafter, target, shape):
    both = rounds(drafter, target, "without-replacement", shape)
    assert both.accepted(RULE) >= both.accepted(DOWNWARDS) - 1e-12


def test_on_bushy_trees_it_accepts_more_than_rrsw_on_average(rounds):
    rng = np.random.default_rng(0)
    more = []
    for shape in BUSHES[2:3] * 6:
        drafter, target = (TableDrafter(rng.dirichlet(np.ones(3), 7)) for _ in range(2))
        both = rounds(drafter, target, "without-replacement", shape)
        more.append(both.accepted(RULE) - both.accepted(DOWNWARDS))
    assert np.mean(more) > 0.02


def test_below_a_weak_node_that_branches_it_may_accept_a_little_less_than_rrsw(rounds):
    """No law of nature: the node is reached with .7, and of its two children some do better from 1 than from .7."""
    drafter = TableDrafter([[0.0, 0.8, 0.15, 0.05], [1.0, 0.0, 0.0, 0.0]])  # after 0 0, and after 0
    target = TableDrafter([[0.25, 0.1, 0.6, 0.05], [0.7, 0.3, 0.0, 0.0]])
    both = rounds(drafter, target, "without-replacement", (((), ()),))
    assert both.error(RULE) < 1e-12
    assert both.accepted(DOWNWARDS) - both.accepted(RULE) == pytest.approx(0.003068, abs=1e-6)


@settings(max_examples=50)
@given(table_drafters(4), SHAPES, NUMBERS)
def test_the_first_draws_of_a_drafter_that_is_right_are_accepted_down_to_a_leaf(
    walk_whatever, first_draws, drafter, shape, numbers
):
    tree, accepted, _ = walk_whatever(RULE, drafter, drafter, "without-replacement", shape, numbers)
    assert accepted.path.tolist() == first_draws(tree)


def test_nothing_follows_a_token_that_ends_the_text(rounds):
    always_1 = TableDrafter([[0.0, 1.0]])
    (walk,) = rounds(always_1, always_1, "without-replacement", (((),),), end=1).walks(RULE)
    assert (walk.accepted.path.tolist(), walk.accepted.token) == ([0], 1)


def test_a_tree_may_be_deep():
    tokens, always = [0] * 1500, Drawn([0], [1.0])
    chain = TokenTree(tokens, np.arange(-1, 1499), np.zeros(1500), dict.fromkeys(range(1499), always))
    accepted = RULE.walk(chain, TableLaws(TableDrafter([[1.0]]), chain), SeededChoices(0))
    assert len(accepted.path) == 1500
