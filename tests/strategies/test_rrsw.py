import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import enumerate_outcomes
from talon_core.drawn import Drawn
from talon_core.testing import TableDrafter, TableLaws, table_drafters, untied_drafters
from talon_core.tree import TokenTree
from talon_strategies import RejectionWithoutReplacement

RULE = RejectionWithoutReplacement()
SHAPES = st.sampled_from([((),), ((), (), ()), (((),), ()), (((), ()), ((),)), (((), ()), ((), ()), ())])
NUMBERS = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None, max_examples=60)
@given(table_drafters(3), table_drafters(3), SHAPES, st.none() | st.integers(0, 2))
def test_the_output_has_the_targets_law_over_all_draws(rounds, drafter, target, shape, end):
    assert rounds(drafter, target, "without-replacement", shape, end).error(RULE) < 1e-12


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), st.sampled_from([((),), (((),),)]))
def test_it_is_exact_for_a_sampled_chain(rounds, drafter, target, shape):
    assert rounds(drafter, target, "sampled-chain", shape).error(RULE) < 1e-12


def test_it_is_not_exact_for_independent_children(rounds):
    drafter, target = TableDrafter([[0.1, 0.3, 0.6]]), TableDrafter([[0.5, 0.4, 0.1]])
    assert rounds(drafter, target, "iid", ((), ())).error(RULE, length=1) > 0.01


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS)
def test_at_temperature_0_the_longest_argmax_path_is_accepted(
    walk_whatever, greedy, greedy_path, drafter, target, shape, numbers
):
    tree, accepted, _ = walk_whatever(RULE, drafter, greedy(target), "without-replacement", shape, numbers)
    assert (accepted.path.tolist(), accepted.token) == greedy_path(tree, greedy(target))


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS, st.none() | st.integers(0, 3))
def test_whatever_comes_out_the_law_is_asked_for_at_accepted_nodes_only(
    walk_whatever, drafter, target, shape, numbers, end
):
    _, accepted, visited = walk_whatever(RULE, drafter, target, "without-replacement", shape, numbers, end)
    assert accepted.path.tolist() == visited


@settings(deadline=None, max_examples=30)
@given(untied_drafters(3), table_drafters(3))
def test_when_every_token_was_drawn_one_of_them_is_accepted(rounds, drafter, target):
    assert rounds(drafter, target, "without-replacement", ((), (), ())).accepted(RULE) == pytest.approx(1)


@pytest.mark.parametrize(
    ("tokens", "expected", "accepted"),
    [
        # token 0: .2/.6. Left of p: (0, .25, .15) by .4; of q: (0, .625, .375), the same
        ([0], [1 / 3, 2 / 3 * 0.625, 2 / 3 * 0.375], 1 / 3),
        ([0, 2], [1 / 3, 0, 2 / 3], 1),
        ([1, 0], [0, 1, 0], 1),
    ],
)
def test_draws_are_tested_one_after_the_other(tokens, expected, accepted):
    tree = TokenTree(
        [0, *tokens], [-1, *[0] * len(tokens)], np.zeros(1 + len(tokens)), {0: Drawn(tokens, [0.6, 0.25, 0.15])}
    )
    laws = TableLaws(TableDrafter([[0.2, 0.5, 0.3]]), tree)
    law, found = np.zeros(3), 0.0
    for prob, walk in enumerate_outcomes(lambda choices: RULE.walk(tree, laws, choices)):
        law[tree.tokens[walk.path[1]] if len(walk.path) > 1 else walk.token] += prob
        found += prob * (len(walk.path) - 1)
    assert law == pytest.approx(expected)
    assert found == pytest.approx(accepted)


def test_nothing_follows_a_token_that_ends_the_text(rounds):
    always_1 = TableDrafter([[0.0, 1.0]])
    (walk,) = rounds(always_1, always_1, "without-replacement", (((), ()), ()), end=1).walks(RULE)
    assert (walk.accepted.path.tolist(), walk.accepted.token) == ([0], 1)
