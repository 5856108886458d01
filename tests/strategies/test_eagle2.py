import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import Eagle2


def by_definition(drafter, budget, depth, top_k):
    """EAGLE-2's rule on plain dictionaries: everything scored, what is expanded, and the part that is verified."""
    scored, layer, expanded = {}, {(0,): 1.0}, {(0,)}
    for _ in range(1 + depth):
        children = {}
        for path, prob in layer.items():
            law = drafter.law_after(path)
            for token in sorted(range(len(law)), key=lambda token: -law[token])[:top_k]:
                children[(*path, token)] = prob * law[token]
        scored |= children
        layer = dict(sorted(children.items(), key=lambda child: -child[1])[:top_k])
        expanded |= layer.keys()
    values = np.sort(list(scored.values()))
    assume((values[:-1] < values[1:] * (1 - 1e-9)).all())
    best = sorted(scored, key=scored.__getitem__, reverse=True)[: budget - 1]
    return {(0,), *scored}, expanded, {(0,), *best}


def test_keeps_the_contract():
    check_tree_policy(Eagle2, max_examples=30)


@pytest.mark.parametrize("options", [{"budget": 2}, {"depth": 0}, {"top_k": 1}, {"budget": 12, "depth": 3, "top_k": 4}])
def test_keeps_the_contract_with_other_options(options):
    check_tree_policy(lambda: Eagle2(**options), max_examples=30)


@given(
    drafter=st.integers(2, 15).flatmap(untied_drafters),
    budget=st.integers(2, 70),
    depth=st.integers(0, 5),
    top_k=st.integers(1, 5),
)
def test_the_tree_is_the_best_of_all_that_was_scored(draft, paths, drafter, budget, depth, top_k):
    drafted = draft(Eagle2(budget=budget, depth=depth, top_k=top_k), drafter)
    scored, expanded, verified = by_definition(drafter, budget, depth, top_k)
    assert expanded | verified <= paths(drafted.drafted) <= scored
    assert paths(drafted.tree) == verified


@given(drafter=untied_drafters(20), budget=st.integers(2, 120), depth=st.integers(0, 4), top_k=st.integers(1, 10))
def test_the_drafted_tree_fills_its_budget(draft, drafter, budget, depth, top_k):
    policy = Eagle2(budget=budget, depth=depth, top_k=top_k)
    drafted = draft(policy, drafter).drafted
    assert len(drafted) == policy.draft_budget
    assert drafted.depths.max() == depth + 1


def test_no_more_of_a_layer_is_drafted_than_could_be_verified():
    assert Eagle2(budget=60, depth=7, top_k=10).draft_budget == 1 + 10 + 7 * 59
    assert Eagle2(budget=200, depth=7, top_k=10).draft_budget == 1 + 10 + 7 * 100  # all that the paper scores


def test_rounding_upwards_does_not_part_a_node_from_its_parent(draft):
    drafter = TableDrafter([[0.0, 1.0, 0.0], [0.5, 0.3, 0.2]], excess=5e-4)
    assert len(draft(Eagle2(budget=4, depth=5), drafter).tree) == 4


@pytest.mark.parametrize("options", [{"budget": 1}, {"depth": -1}, {"top_k": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Eagle2(**options)
