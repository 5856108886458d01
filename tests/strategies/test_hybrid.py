import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import enumerate_outcomes
from talon_core.drawn import Drawn
from talon_core.testing import TableDrafter, TableLaws, draft_trees, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import Hybrid, Match

RULE, MATCH = Hybrid(), Match()
SHAPES = st.sampled_from([((),), ((), (), ()), (((),), ()), ((), ((), ())), (((), ()), ((), ()), ((),))])
SAMPLED_CHAINS = st.sampled_from([((),), (((),),)])
NUMBERS = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None, max_examples=60)
@given(table_drafters(3), table_drafters(3), SHAPES, st.none() | st.integers(0, 2))
def test_the_output_has_the_targets_law_over_all_draws(rounds, drafter, target, shape, end):
    assert rounds(drafter, target, "hybrid", shape, end).error(RULE) < 1e-12


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), SAMPLED_CHAINS)
def test_it_is_exact_for_a_sampled_chain(rounds, drafter, target, shape):
    assert rounds(drafter, target, "sampled-chain", shape).error(RULE) < 1e-12


@settings(max_examples=50)
@given(table_drafters(3), draft_trees(max_nodes=9, vocab_size=3))
def test_without_drawn_children_it_is_match(target, tree):
    def law(rule):
        walks = enumerate_outcomes(lambda choices: rule.walk(tree, TableLaws(target, tree), choices))
        return [(prob, walk.path.tolist(), walk.token) for prob, walk in walks]

    assert law(RULE) == law(MATCH)


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS)
def test_at_temperature_0_the_longest_argmax_path_is_accepted(
    walk_whatever, greedy, greedy_path, drafter, target, shape, numbers
):
    tree, accepted, _ = walk_whatever(RULE, drafter, greedy(target), "hybrid", shape, numbers)
    assert (accepted.path.tolist(), accepted.token) == greedy_path(tree, greedy(target))


@settings(max_examples=50)
@given(table_drafters(4), table_drafters(4), SHAPES, NUMBERS, st.none() | st.integers(0, 3))
def test_whatever_comes_out_the_law_is_asked_for_at_accepted_nodes_only(
    walk_whatever, drafter, target, shape, numbers, end
):
    _, accepted, visited = walk_whatever(RULE, drafter, target, "hybrid", shape, numbers, end)
    assert accepted.path.tolist() == visited


@settings(deadline=None, max_examples=40)
@given(table_drafters(3), table_drafters(3), SHAPES)
def test_it_accepts_at_least_as_much_as_match_on_the_same_trees(rounds, drafter, target, shape):
    both = rounds(drafter, target, "hybrid", shape)
    assert both.accepted(RULE) >= both.accepted(MATCH) - 1e-12


@settings(deadline=None, max_examples=40)
@given(table_drafters(4), st.sampled_from([((),), ((), ()), (((), ()), ((), ())), (((),), ((),))]))
def test_where_the_drafter_is_right_a_drawn_child_makes_up_for_all_that_is_not_in_the_tree(rounds, drafter, shape):
    depth = 1 if shape[0] == () else 2
    hybrid = rounds(drafter, drafter, "hybrid", shape).accepted(RULE)
    likeliest = rounds(drafter, drafter, "deterministic", shape).accepted(MATCH)
    assert hybrid == pytest.approx(depth)
    assert likeliest <= hybrid + 1e-12


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        # fixed: 1; q without it: (.8, 0, .2); what p has more: (0, .5, .1)
        (0, {(0,): 0.25, (1,): 0.75 * 5 / 6, 2: 0.75 / 6}),
        (2, {(2,): 1.0}),
    ],
)
def test_the_drawn_child_is_tested_first_and_what_is_left_may_hit_a_fixed_one(drawn, expected):
    q = np.array([0.8, 0.0, 0.2])
    tree = TokenTree([0, 1, drawn], [-1, 0, 0], [0, 0, 0], {0: Drawn([drawn], q)})
    laws = TableLaws(TableDrafter([[0.2, 0.5, 0.3]]), tree)
    law = {}
    for prob, walk in enumerate_outcomes(lambda choices: RULE.walk(tree, laws, choices)):
        # accepted ones as a path, and what is emitted without a node for it as a token
        key = tuple(tree.tokens[walk.path[1:]].tolist()) or walk.token
        law[key] = law.get(key, 0.0) + prob
    assert law == pytest.approx(expected)


def test_nothing_follows_a_token_that_ends_the_text(rounds):
    always_1 = TableDrafter([[0.0, 1.0]])
    for kind in ("hybrid", "deterministic"):
        (walk,) = rounds(always_1, always_1, kind, (((),),), end=1).walks(RULE)
        assert (walk.accepted.path.tolist(), walk.accepted.token) == ([0], 1)
