import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import DDTree, OptTree


def by_definition(drafter, count, delta, depth):
    """The paper's rule on plain dictionaries: layers of `count` nodes; the paths of the tree, and its layers."""
    scored, layer, expected, layers = {}, {(0,): 1.0}, 0.0, 0
    while True:
        children = {
            (*path, token): prob * p
            for path, prob in layer.items()
            for token, p in enumerate(drafter.law_after(path).tolist())
        }
        layer = dict(sorted(children.items(), key=lambda child: -child[1])[:count])
        scored |= layer
        layers += 1
        best = sorted(scored.values(), reverse=True)[:count]
        grown = sum(best) - expected
        expected = sum(best)
        assume(abs(grown - delta) > 1e-9)
        if grown <= delta or layers == depth:
            break
    values = np.sort(list(scored.values()))
    assume((values[:-1] < values[1:] * (1 - 1e-9)).all())
    return {(0,), *sorted(scored, key=scored.__getitem__, reverse=True)[:count]}, layers


def test_keeps_the_contract():
    check_tree_policy(OptTree, max_examples=20)


@pytest.mark.parametrize("options", [{"budget": 2}, {"depth": 1}, {"budget": 9, "delta": 0.0, "depth": 3}])
def test_keeps_the_contract_with_other_options(options):
    check_tree_policy(lambda: OptTree(**options), max_examples=12)


@given(
    drafter=st.integers(2, 9).flatmap(untied_drafters),
    budget=st.integers(2, 20),
    delta=st.sampled_from([0.01, 0.1, 0.3, 0.5]),
    depth=st.integers(1, 5),
)
def test_the_tree_is_the_papers(draft, paths, drafter, budget, delta, depth):
    drafted = draft(OptTree(budget=budget, delta=delta, depth=depth), drafter)
    expected, layers = by_definition(drafter, budget - 1, delta, depth)
    assert paths(drafted.tree) == expected
    assert drafted.drafted.depths.max() <= layers


def test_a_tree_by_hand(draft, paths):
    drafter = TableDrafter([[0.7, 0.3]])
    # the two likeliest of one layer are .7 and .3, of two layers .7 and .49: .19 more
    assert paths(draft(OptTree(budget=3, delta=0.2), drafter).tree) == {(0,), (0, 0), (0, 0, 0)}
    assert draft(OptTree(budget=3, delta=0.2), drafter).drafted.depths.max() == 2
    # the sums of three are 1, 1.49 = .7 + .49 + .3 and 1.533 = .7 + .49 + .343: .49 more, then .043
    drafted = draft(OptTree(budget=4, delta=0.2), drafter)
    assert paths(drafted.tree) == {(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)}
    assert drafted.drafted.depths.max() == 3
    assert paths(draft(OptTree(budget=4, delta=0.5), drafter).tree) == {(0,), (0, 0), (0, 1), (0, 0, 0)}


@given(drafter=untied_drafters(5), budget=st.integers(2, 8))
def test_without_a_threshold_and_a_bound_it_is_ddtree(draft, paths, drafter, budget):
    policy = OptTree(budget=budget, delta=0.0, depth=budget)
    assert paths(draft(policy, drafter).tree) == paths(draft(DDTree(budget=budget), drafter).tree)


@given(drafter=untied_drafters(6), budget=st.integers(2, 30))
def test_a_larger_threshold_drafts_no_deeper(draft, drafter, budget):
    depths = [draft(OptTree(budget=budget, delta=delta), drafter).drafted.depths.max() for delta in (0.8, 0.4, 0.1, 0)]
    assert depths == sorted(depths)


@pytest.mark.parametrize("options", [{"budget": 1}, {"depth": 0}, {"delta": -0.1}, {"delta": "much"}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        OptTree(**options)
