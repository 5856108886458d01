"""What all policies that decide how long a chain becomes have in common."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, untied_drafters
from talon_strategies import AdaEdl, GammaTune, GammaTunePlus, Heuristic, SpecDecPlusPlus, Sps, Svip
from talon_strategies.stopping import PlannedChain

CHAINS = [AdaEdl, GammaTune, GammaTunePlus, Heuristic, SpecDecPlusPlus, Sps, Svip]
chains = pytest.mark.parametrize("policy", CHAINS)


@chains
@given(drafter=st.integers(2, 20).flatmap(untied_drafters), length=st.integers(1, 12))
def test_they_draft_the_best_tokens_from_one_on_up_to_their_length(draft, drafter, policy, length):
    tree = draft(policy(length=length), drafter).tree
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
    assert 2 <= len(tree) <= policy(length=length).budget == 1 + length
    for node in range(1, len(tree)):
        assert tree.tokens[node] == drafter.law_after(tree.tokens[:node].tolist()).argmax()


@chains
def test_a_sure_drafter_is_followed_as_far_as_it_may_be(draft, policy):
    options = {"start": 1 if policy is Sps else 6} if issubclass(policy, PlannedChain) else {}
    assert len(draft(policy(length=6, **options), TableDrafter([[0.0, 1.0, 0.0]])).tree) == 7


@pytest.mark.parametrize("policy", [AdaEdl, GammaTunePlus, SpecDecPlusPlus, Svip])
def test_after_a_flat_law_nothing_is_drafted(draft, policy):
    assert len(draft(policy(), TableDrafter(np.ones((1, 20)) / 20 + np.eye(1, 20) * 1e-3)).tree) == 2


@chains
@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_chain_is_refused(policy, length):
    with pytest.raises(ValueError, match="length"):
        policy(length=length)
