import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import check_tree_policy, untied_drafters
from talon_strategies import TalonGateOnly


def test_keeps_the_contract():
    check_tree_policy(TalonGateOnly, max_examples=30)


@given(drafter=untied_drafters(30), mu=st.sampled_from([0.01, 0.1, 0.5]))
def test_the_first_layer_is_what_passes_the_gate(draft, drafter, mu):
    tree = draft(TalonGateOnly(budget=60, mu=mu), drafter).tree
    law = drafter.law_after((0,))
    passing = np.flatnonzero(law >= mu * law.max() * (1 + 1e-9))
    assert set(passing.tolist()) <= set(tree.tokens[tree.depths == 1].tolist())
    assert law[tree.tokens[tree.depths == 1]].min() >= mu * law.max() * (1 - 1e-9)


@given(drafter=untied_drafters(30), mu=st.sampled_from([0.01, 0.1, 0.5]))
def test_every_layer_passes_the_gate(draft, drafter, mu):
    tree = draft(TalonGateOnly(budget=60, mu=mu), drafter).tree
    for depth in range(1, tree.depths.max() + 1):
        layer = tree.path_logp[tree.depths == depth]
        assert layer.min() >= layer.max() + np.log(mu) - 1e-9
