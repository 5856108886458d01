import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.testing import check_tree_policy, table_drafters, untied_drafters
from talon_strategies import Hybrid, TalonSampled


def test_keeps_the_contract():
    check_tree_policy(TalonSampled, max_examples=50)


@pytest.mark.parametrize("options", [{"budget": 2}, {"mu": 1}, {"budget": 7, "top_k": 100}, {"temperature": 0.2}])
def test_keeps_the_contract_with_extreme_options(options):
    check_tree_policy(lambda: TalonSampled(**options), max_examples=20)


@settings(max_examples=50)
@given(untied_drafters(12), st.integers(2, 40), st.sampled_from([0.01, 0.1, 0.5]))
def test_a_group_of_siblings_holds_at_most_one_that_was_drawn_and_not_from_the_others(draft, drafter, budget, mu):
    tree = draft(TalonSampled(budget=budget, mu=mu, temperature=1.0), drafter).tree
    for node, drawn in tree.drawn.items():
        siblings = tree.tokens[tree.parents == node].tolist()
        fixed = [token for token in siblings if token != drawn.tokens[0]]
        law = drafter.law_after(tree.tokens[tree.path(node)].tolist())
        law = np.where(np.isin(np.arange(12), fixed), 0.0, law)
        assert len(drawn.tokens) == 1
        assert drawn.law == pytest.approx(law / law.sum())


@settings(deadline=None, max_examples=40)
@given(table_drafters(3), table_drafters(3), st.integers(2, 5))
def test_with_its_rule_the_output_has_the_targets_law(rounds_of, drafter, target, budget):
    policy = TalonSampled(budget=budget, top_k=2)
    assert (policy.default_rule, policy.children) == (Hybrid.name, "hybrid")
    assert rounds_of(policy, drafter, target).error(Hybrid()) < 1e-12


@pytest.mark.parametrize("options", [{"budget": 1}, {"top_k": 0}, {"mu": 0}, {"mu": 1.5}, {"temperature": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TalonSampled(**options)
