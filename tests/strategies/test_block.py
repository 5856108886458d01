from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices, enumerate_outcomes
from talon_core.drawn import Drawn
from talon_core.testing import TableDrafter, TableLaws, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import Block, RecursiveRejection

RULE, TOKEN_BY_TOKEN = Block(), RecursiveRejection()
CHAINS = [(), ((),), (((),),), ((((),),),)]
SHAPES = st.sampled_from(CHAINS)
NUMBERS = st.lists(st.integers(0, 5), max_size=8)


@settings(deadline=None, max_examples=60)
@given(table_drafters(3), table_drafters(3), SHAPES, st.none() | st.integers(0, 2))
@example(TableDrafter([[0.5, 0.5, 1e-300]]), TableDrafter([[0.5, 0.5, 0.0]]), CHAINS[2], None)
@example(TableDrafter([[0.25, 0.75, 0.0]]), TableDrafter([[0.25, 0.75 - 1e-16, 1e-16]]), CHAINS[3], None)
def test_the_output_has_the_targets_law_over_all_draws(rounds, drafter, target, shape, end):
    assert rounds(drafter, target, "sampled-chain", shape, end).error(RULE, length=4) < 1e-12


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS)
def test_at_temperature_0_the_longest_argmax_path_is_accepted_and_nothing_below_it_is_looked_at(
    walk_whatever, greedy, greedy_path, drafter, target, shape, numbers
):
    tree, accepted, visited = walk_whatever(RULE, drafter, greedy(target), "sampled-chain", shape, numbers)
    assert (accepted.path.tolist(), accepted.token) == greedy_path(tree, greedy(target))
    assert set(visited) == set(accepted.path.tolist())


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS, st.integers(0, 3))
def test_whatever_comes_out_no_law_is_asked_for_after_a_token_that_ends_the_text(
    walk_whatever, drafter, target, shape, numbers, end
):
    tree, _, visited = walk_whatever(RULE, drafter, target, "sampled-chain", shape, numbers, end)
    assert all(end not in tree.tokens[tree.path(node)[1:]] for node in visited)


@settings(deadline=None, max_examples=60)
@given(table_drafters(3), table_drafters(3), SHAPES)
def test_it_never_accepts_less_than_testing_token_by_token(rounds, drafter, target, shape):
    both = rounds(drafter, target, "sampled-chain", shape)
    assert both.accepted(RULE) >= both.accepted(TOKEN_BY_TOKEN) - 1e-12


def test_the_papers_example_of_two_tokens(rounds):
    drafter, target = TableDrafter([[2 / 3, 1 / 3]]), TableDrafter([[1 / 3, 2 / 3]])
    both = rounds(drafter, target, "sampled-chain", CHAINS[2])
    assert both.accepted(TOKEN_BY_TOKEN) == pytest.approx(10 / 9)
    assert both.accepted(RULE) == pytest.approx(11 / 9)


@settings(max_examples=50)
@given(table_drafters(4), SHAPES, NUMBERS)
def test_the_whole_chain_of_a_drafter_that_is_right_is_accepted(walk_whatever, drafter, shape, numbers):
    tree, accepted, _ = walk_whatever(RULE, drafter, drafter, "sampled-chain", shape, numbers)
    assert accepted.path.tolist() == list(range(len(tree)))


def test_a_weak_token_is_carried_by_a_strong_one_after_it():
    """p/q is 1/2 for the first token and 2 for the second, so the product is 1: both are accepted for sure."""
    target = TableDrafter([[0.3, 0.7], [0.8, 0.2]])
    after = [target.law_after([0]), target.law_after([0, 0])]
    drawn = {
        0: Drawn([0], [2 * after[0][0], 1 - 2 * after[0][0]]),
        1: Drawn([0], [after[1][0] / 2, 1 - after[1][0] / 2]),
    }
    chain = TokenTree([0, 0, 0], [-1, 0, 1], [0, 0, 0], drawn)
    law = defaultdict(float)
    for prob, walk in enumerate_outcomes(lambda choices: RULE.walk(chain, TableLaws(target, chain), choices)):
        law[tuple(walk.path.tolist())] += prob
    assert law == pytest.approx({(0, 1, 2): 1.0})


def test_nothing_follows_a_token_that_ends_the_text(rounds):
    always_1 = TableDrafter([[0.0, 1.0]])
    (walk,) = rounds(always_1, always_1, "sampled-chain", CHAINS[3], end=1).walks(RULE)
    assert (walk.accepted.path.tolist(), walk.accepted.token) == ([0], 1)


def test_a_chain_may_be_long():
    tokens, always = [0] * 1500, Drawn([0], [1.0])
    chain = TokenTree(tokens, np.arange(-1, 1499), np.zeros(1500), dict.fromkeys(range(1499), always))
    accepted = RULE.walk(chain, TableLaws(TableDrafter([[1.0]]), chain), SeededChoices(0))
    assert len(accepted.path) == 1500
