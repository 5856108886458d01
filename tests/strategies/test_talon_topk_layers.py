import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import check_tree_policy, untied_drafters
from talon_strategies import Talon, TalonGateOnly, TalonTopkLayers

drafters = untied_drafters(20)


@pytest.mark.parametrize("layers", range(4))
def test_keeps_the_contract(layers):
    check_tree_policy(lambda: TalonTopkLayers(layers=layers), max_examples=40)


@given(drafter=drafters, budget=st.integers(2, 64))
def test_one_layer_is_talon(draft, paths, drafter, budget):
    tree = draft(TalonTopkLayers(budget=budget, layers=1), drafter).tree
    assert paths(tree) == paths(draft(Talon(budget=budget), drafter).tree)


@given(drafter=drafters, budget=st.integers(2, 64))
def test_no_layer_is_the_gate_alone(draft, paths, drafter, budget):
    tree = draft(TalonTopkLayers(budget=budget, layers=0), drafter).tree
    assert paths(tree) == paths(draft(TalonGateOnly(budget=budget), drafter).tree)


@given(drafter=drafters, layers=st.integers(1, 3), top_k=st.integers(1, 6))
def test_the_first_layers_are_the_best_of_all_parents_together(draft, drafter, layers, top_k):
    tree = draft(TalonTopkLayers(budget=60, top_k=top_k, layers=layers), drafter).tree
    parents = np.zeros(1, dtype=int)
    for depth in range(1, layers + 1):
        scores = [
            tree.path_logp[node] + np.log(drafter.law_after(tree.tokens[tree.path(node)].tolist())) for node in parents
        ]
        best = np.sort(np.concatenate(scores))[::-1][:top_k]
        parents = np.flatnonzero(tree.depths == depth)
        assert np.allclose(np.sort(tree.path_logp[parents])[::-1], best, rtol=0, atol=1e-9)
