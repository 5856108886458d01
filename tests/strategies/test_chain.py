import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import check_tree_policy, untied_drafters
from talon_strategies import Chain


@pytest.mark.parametrize("length", [1, 5, 20])
def test_keeps_the_contract(length):
    check_tree_policy(lambda: Chain(length=length), max_examples=40)


@given(drafter=st.integers(2, 15).flatmap(untied_drafters), length=st.integers(1, 20))
def test_every_token_is_the_best_after_the_one_before(draft, drafter, length):
    tree = draft(Chain(length=length), drafter).tree
    assert tree.parents.tolist() == list(range(-1, length))
    for node in range(1, length + 1):
        assert tree.tokens[node] == drafter.law_after(tree.tokens[:node].tolist()).argmax()


def test_an_empty_chain_is_refused():
    with pytest.raises(ValueError, match="length"):
        Chain(length=0)
