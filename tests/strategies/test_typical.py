import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices, enumerate_outcomes
from talon_core.testing import TableDrafter, TableLaws, draft_trees, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import Match, Typical

RULE = Typical()


def typical(p, token, epsilon=0.09, delta=0.3):
    entropy = -sum(prob * np.log(prob) for prob in p if prob > 0)
    return p[token] > min(epsilon, delta * np.exp(-entropy))


def accepted(rule, tree, target, end=None):
    return rule.walk(tree, TableLaws(target, tree, end), SeededChoices(0)).path.tolist()


@pytest.mark.parametrize(
    ("law", "rule", "expected"),
    [
        # H = 1.142, .3 exp(-H) = .0957: the cap of .09 decides
        ([0.5, 0.3, 0.15, 0.05], RULE, {0, 1, 2}),
        ([0.5, 0.3, 0.11, 0.09], RULE, {0, 1, 2}),
        # four equals: exp(-H) = .25, and .3 of it is .075
        ([0.25, 0.25, 0.25, 0.25], RULE, {0, 1, 2, 3}),
        # one is sure, and the rest is below .09, above .02
        ([0.91, 0.03, 0.03, 0.03], RULE, {0}),
        ([0.91, 0.03, 0.03, 0.03], Typical(epsilon=0.02), {0, 1, 2, 3}),
        # .7 exp(-H) = .7 * .3191 = .2234
        ([0.5, 0.3, 0.15, 0.05], Typical(epsilon=0.9, delta=0.7), {0, 1}),
    ],
)
def test_what_is_typical_by_hand(law, rule, expected):
    found = {
        token
        for token in range(4)
        if accepted(rule, TokenTree([0, token], [-1, 0], [0, 0]), TableDrafter([law])) == [0, 1]
    }
    assert found == expected


def test_a_longer_path_is_kept_before_a_likelier_one():
    target = TableDrafter([[0.5, 0.3, 0.2]])
    tree = TokenTree([0, 0, 2, 2, 0, 1], [-1, 0, 0, 2, 1, 1], np.zeros(6))
    assert accepted(RULE, tree, target) == [0, 1, 4]  # .25 before .15 and .04
    assert accepted(RULE, tree.keep([0, 1, 2, 3]), target) == [0, 2, 3]  # .04, but longer than .5


@settings(max_examples=60)
@given(table_drafters(4), draft_trees(max_nodes=15, vocab_size=4))
def test_the_longest_path_of_typical_tokens_is_accepted_the_likeliest_of_these(target, tree):
    found = {0: 1.0}
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        if parent in found:
            p = target.law_after(tree.tokens[tree.path(parent)].tolist())
            if typical(p, tree.tokens[node]):
                found[node] = found[parent] * p[tree.tokens[node]]
    longest = max(tree.depths[node] for node in found)
    path = accepted(RULE, tree, target)
    assert path[-1] in found
    assert len(path) == longest + 1
    assert found[path[-1]] >= max(found[node] for node in found if tree.depths[node] == longest) * (1 - 1e-9)


@settings(max_examples=60)
@given(table_drafters(4), draft_trees(max_nodes=15, vocab_size=4), st.none() | st.integers(0, 3))
def test_at_temperature_0_it_accepts_what_match_does(greedy, target, tree, end):
    laws = TableLaws(greedy(target), tree, end)
    ours, matchs = (rule.walk(tree, laws, SeededChoices(0)) for rule in (RULE, Match()))
    assert (ours.path.tolist(), ours.token) == (matchs.path.tolist(), matchs.token)


def test_the_token_after_the_path_is_drawn_from_the_target():
    target = TableDrafter([[0.5, 0.3, 0.2]])
    tree = TokenTree([0, 1], [-1, 0], [0, 0])
    walks = enumerate_outcomes(lambda choices: RULE.walk(tree, TableLaws(target, tree), choices))
    assert [(prob, walk.path.tolist(), walk.token) for prob, walk in walks] == [
        (0.5, [0, 1], 0),
        (0.3, [0, 1], 1),
        (0.2, [0, 1], 2),
    ]


def test_it_says_that_it_is_lossy_and_it_is(rounds):
    assert Typical.lossy
    assert not Typical.exact_for
    target = TableDrafter([[0.5, 0.3, 0.2]])
    for kind in ("deterministic", "without-replacement"):
        assert rounds(target, target, kind, ((), ())).error(RULE, length=1) > 0.1


def test_nothing_follows_a_token_that_ends_the_text():
    target = TableDrafter([[0.5, 0.3, 0.2]])
    tree = TokenTree([0, 1, 0, 0], [-1, 0, 1, 2], np.zeros(4))
    walk = RULE.walk(tree, TableLaws(target, tree, end=0), SeededChoices(0))
    assert (walk.path.tolist(), walk.token) == ([0, 1], 0)
    walk = RULE.walk(tree, TableLaws(target, tree, end=1), SeededChoices(0))
    assert (walk.path.tolist(), walk.token) == ([0], 1)


@pytest.mark.parametrize("value", [0, 1, -0.1, float("nan"), "0.1", None, True])
@pytest.mark.parametrize("option", ["epsilon", "delta"])
def test_options_out_of_range_are_refused_in_words(option, value):
    with pytest.raises(ValueError, match=rf"^.?.?{option}.? (must be|is .*; it must be a number)"):
        Typical(**{option: value})
