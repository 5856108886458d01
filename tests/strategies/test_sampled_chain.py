from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import enumerate_outcomes
from talon_core.testing import TableDrafter, check_tree_policy, table_drafters, untied_drafters
from talon_strategies import Block, Hybrid, RecursiveRejection, RejectionWithoutReplacement, SampledChain, Traversal

RULES = st.sampled_from([Block(), Hybrid(), RecursiveRejection(), RejectionWithoutReplacement(), Traversal()])


def test_keeps_the_contract():
    check_tree_policy(SampledChain, max_examples=40)


@pytest.mark.parametrize("options", [{"length": 1}, {"length": 20, "temperature": 0.05}, {"temperature": 50.0}])
def test_keeps_the_contract_with_other_options(options):
    check_tree_policy(lambda: SampledChain(**options), max_examples=20)


@settings(deadline=None, max_examples=30)
@given(untied_drafters(3), st.integers(1, 4), st.sampled_from([0.5, 1.0, 3.0]))
def test_chains_have_the_law_of_the_drafter_at_the_temperature(draft, drafter, length, temperature):
    policy = SampledChain(length=length, temperature=temperature)
    law = defaultdict(float)
    for prob, tree in enumerate_outcomes(lambda choices: draft(policy, drafter, choices).tree):
        assert tree.parents.tolist() == list(range(-1, length))
        law[tuple(tree.tokens.tolist())] += prob
    for text, prob in law.items():
        laws = [drafter.law_after(text[:at]) for at in range(1, length + 1)]
        hot = [one ** (1 / temperature) / (one ** (1 / temperature)).sum() for one in laws]
        assert prob == pytest.approx(np.prod([one[token] for one, token in zip(hot, text[1:], strict=True)]))
    assert sum(law.values()) == pytest.approx(1)


def test_the_tree_says_what_each_token_was_drawn_from(draft):
    drafter = TableDrafter([[0.2, 0.8], [0.9, 0.1]])
    tree = draft(SampledChain(length=3), drafter).tree
    assert sorted(tree.drawn) == [0, 1, 2]
    for node, drawn in tree.drawn.items():
        path = tree.tokens[tree.path(node)].tolist()
        assert drawn.tokens.tolist() == [tree.tokens[node + 1]]
        assert drawn.law.tolist() == drafter.law_after(path).tolist()


@settings(deadline=None, max_examples=30)
@given(table_drafters(3), table_drafters(3), RULES, st.sampled_from([0.3, 1.0, 2.0]))
def test_every_rule_for_chains_keeps_the_targets_law(rounds_of, drafter, target, rule, temperature):
    assert rounds_of(SampledChain(length=2, temperature=temperature), drafter, target).error(rule) < 1e-12


def test_its_default_rule_is_block():
    assert (SampledChain.default_rule, SampledChain.children) == ("block", "sampled-chain")
    assert SampledChain.children in Block.exact_for


@pytest.mark.parametrize("options", [{"length": 0}, {"temperature": 0}, {"temperature": float("nan")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        SampledChain(**options)
