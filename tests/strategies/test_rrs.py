import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import enumerate_outcomes
from talon_core.drawn import Drawn
from talon_core.testing import TableDrafter, TableLaws, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import RecursiveRejection

RULE = RecursiveRejection()
SHAPES = st.sampled_from([((),), ((), (), ()), (((),), ()), (((), ()), ((),))])
NUMBERS = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None, max_examples=60)
@given(table_drafters(3), table_drafters(3), SHAPES, st.none() | st.integers(0, 2))
def test_the_output_has_the_targets_law_over_all_draws(rounds, drafter, target, shape, end):
    assert rounds(drafter, target, "iid", shape, end).error(RULE) < 1e-12


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), st.sampled_from([((),), (((),),)]))
def test_it_is_exact_for_a_sampled_chain(rounds, drafter, target, shape):
    assert rounds(drafter, target, "sampled-chain", shape).error(RULE) < 1e-12


def test_it_is_not_exact_for_children_that_were_drawn_without_replacement(rounds):
    drafter, target = TableDrafter([[0.1, 0.3, 0.6]]), TableDrafter([[0.5, 0.4, 0.1]])
    assert rounds(drafter, target, "without-replacement", ((), ())).error(RULE, length=1) > 0.01


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS)
def test_at_temperature_0_the_longest_argmax_path_is_accepted(
    walk_whatever, greedy, greedy_path, drafter, target, shape, numbers
):
    tree, accepted, _ = walk_whatever(RULE, drafter, greedy(target), "iid", shape, numbers)
    assert (accepted.path.tolist(), accepted.token) == greedy_path(tree, greedy(target))


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS, st.none() | st.integers(0, 3))
def test_whatever_comes_out_the_law_is_asked_for_at_accepted_nodes_only(
    walk_whatever, drafter, target, shape, numbers, end
):
    _, accepted, visited = walk_whatever(RULE, drafter, target, "iid", shape, numbers, end)
    assert accepted.path.tolist() == visited


@settings(max_examples=50)
@given(table_drafters(4), SHAPES, NUMBERS)
def test_the_first_draws_of_a_drafter_that_is_right_are_accepted(walk_whatever, first_draws, drafter, shape, numbers):
    tree, accepted, _ = walk_whatever(RULE, drafter, drafter, "iid", shape, numbers)
    assert accepted.path.tolist() == first_draws(tree)


@pytest.mark.parametrize(
    ("tokens", "first", "expected"),
    [
        # token 0: .2/.6. Left: (0, .25, .15) by .4 = (0, .625, .375), of which q exceeds nothing
        ([0], 1 / 3, [1 / 3, 2 / 3 * 0.625, 2 / 3 * 0.375]),
        # again, and nothing is left of it. Left: (0, .375, .225) by .6 = (0, .625, .375)
        ([0, 0], 1 / 3, [1 / 3, 2 / 3 * 0.625, 2 / 3 * 0.375]),
        # token 1: .625/.25
        ([0, 1], 1.0, [1 / 3, 2 / 3, 0]),
        ([1, 0], 1.0, [0, 1, 0]),
    ],
)
def test_draws_are_tested_one_after_the_other(tokens, first, expected):
    drawn = Drawn(tokens, [0.6, 0.25, 0.15], replacement=True)
    nodes = drawn.nodes.tolist()
    tree = TokenTree([0, *nodes], [-1, *[0] * len(nodes)], np.zeros(1 + len(nodes)), {0: drawn})
    laws = TableLaws(TableDrafter([[0.2, 0.5, 0.3]]), tree)
    law, accepted = np.zeros(3), 0.0
    for prob, walk in enumerate_outcomes(lambda choices: RULE.walk(tree, laws, choices)):
        law[tree.tokens[walk.path[1]] if len(walk.path) > 1 else walk.token] += prob
        accepted += prob * (len(walk.path) - 1)
    assert law == pytest.approx(expected)
    assert accepted == pytest.approx(first)


def test_nothing_follows_a_token_that_ends_the_text(rounds):
    always_1 = TableDrafter([[0.0, 1.0]])
    (walk,) = rounds(always_1, always_1, "iid", (((), ()), ()), end=1).walks(RULE)
    assert (walk.accepted.path.tolist(), walk.accepted.token) == ([0], 1)
