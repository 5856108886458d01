from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices, enumerate_outcomes
from talon_core.testing import TableDrafter, TableLaws, draft_trees, table_drafters
from talon_core.tree import TokenTree
from talon_strategies import Match


def decoded(accepted, tree):
    return [*tree.tokens[accepted.path[1:]].tolist(), accepted.token]


def joint_law(outcomes):
    law = defaultdict(float)
    for prob, text in outcomes:
        law[text] += prob
    return law


@settings(deadline=None)
@given(target=table_drafters(3), tree=draft_trees(max_nodes=9, vocab_size=3), end=st.none() | st.integers(0, 2))
def test_the_output_has_the_targets_law_whatever_the_tree(target, tree, end):
    def text(choices, tokens):
        """Three tokens, or fewer if one ends the text: those given, and the target's own from there on."""
        while len(tokens) < 3 and end not in tokens[-1:]:
            tokens = [*tokens, choices.pick(target.law_after([tree.tokens[0], *tokens]))]
        return tuple(tokens[:3])

    def speculative(choices):
        return text(choices, decoded(Match().walk(tree, TableLaws(target, tree, end), choices), tree))

    plain = joint_law(enumerate_outcomes(lambda choices: text(choices, [])))
    ours = joint_law(enumerate_outcomes(speculative))
    assert set(ours) == set(plain)
    assert all(abs(ours[text] - plain[text]) < 1e-12 for text in plain)


@given(target=table_drafters(4), tree=draft_trees(max_nodes=20, vocab_size=4))
def test_at_temperature_0_the_longest_argmax_path_is_accepted(greedy, greedy_path, target, tree):
    target = greedy(target)
    tree = TokenTree([0, *tree.tokens[1:]], tree.parents, tree.path_logp)
    accepted = Match().walk(tree, TableLaws(target, tree), SeededChoices(0))
    assert (accepted.path.tolist(), accepted.token) == greedy_path(tree, target)


@given(target=table_drafters(4), tree=draft_trees(max_nodes=20, vocab_size=4), seed=st.integers(0, 1000))
def test_the_law_is_asked_for_at_accepted_nodes_only(target, tree, seed):
    laws = TableLaws(target, tree)
    assert Match().walk(tree, laws, SeededChoices(seed)).path.tolist() == laws.asked


def test_nothing_follows_a_token_that_ends_the_text():
    chain = TokenTree(tokens=[0, 1, 1, 1], parents=[-1, 0, 1, 2], path_logp=[0, 0, 0, 0])
    always_1 = TableDrafter([[0.0, 1.0]])
    accepted = Match().walk(chain, TableLaws(always_1, chain, end=1), SeededChoices(0))
    assert (accepted.path.tolist(), accepted.token) == ([0], 1)
    accepted = Match().walk(chain, TableLaws(always_1, chain), SeededChoices(0))
    assert (accepted.path.tolist(), accepted.token) == ([0, 1, 2, 3], 1)


@pytest.mark.parametrize("children", ["deterministic", "sampled"])
def test_it_is_exact_for_trees_of_any_kind(children):
    assert {children, "any"} & Match.exact_for
