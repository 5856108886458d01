import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import TalonAbsolute


def test_keeps_the_contract():
    check_tree_policy(TalonAbsolute, max_examples=30)


@given(drafter=untied_drafters(20), threshold=st.sampled_from([0.01, 0.05, 0.3, 1]))
def test_exactly_the_paths_at_the_threshold_join(draft, paths, drafter, threshold):
    tree = draft(TalonAbsolute(budget=10**4, top_k=3, threshold=threshold), drafter).tree
    first = np.argsort(-drafter.law_after((0,)))[:3].tolist()
    expected, layer = {(0,)}, {(0, token): drafter.law_after((0,))[token] for token in first}
    while layer:
        expected |= set(layer)
        layer = {
            (*path, token): prob * more
            for path, prob in layer.items()
            for token, more in enumerate(drafter.law_after(path))
            if prob * more >= threshold
        }
    assert paths(tree) == expected


def test_the_drafting_ends_where_no_path_is_likely_enough(draft):
    tree = draft(TalonAbsolute(threshold=0.3), TableDrafter([[0.5, 0.5]])).tree
    assert tree.depths.tolist() == [0, 1, 1]
