"""The schedule of transformers' assisted generation, held against its own code."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from talon_core.testing import TableDrafter, check_tree_policy
from talon_strategies import Heuristic

SURE = TableDrafter([[0.9, 0.1]])


@pytest.mark.parametrize("options", [{}, {"length": 1}, {"start": 30}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: Heuristic(**options), max_examples=20)


def lengths_of_transformers(accepting, start):
    """The lengths that transformers' own method comes to."""
    generator = SimpleNamespace(
        num_assistant_tokens=start,
        assistant_generation_config=SimpleNamespace(
            num_assistant_tokens_schedule="heuristic_transient", assistant_confidence_threshold=None
        ),
    )
    for most in accepting:
        yield generator.num_assistant_tokens
        drafted = generator.num_assistant_tokens
        scores = np.zeros((1, 1 + drafted, 2))
        AssistedCandidateGenerator.update_candidate_strategy(generator, None, scores, min(most, drafted))


@given(st.lists(st.integers(0, 12), max_size=10), st.integers(1, 8))
def test_the_lengths_are_those_of_transformers(draft, round_of, accepting, start):
    policy, found = Heuristic(length=100, start=start), []
    for most in accepting:
        found.append(len(draft(policy, SURE).tree) - 1)
        policy.observe(round_of(found[-1], min(most, found[-1])))
    assert found == [*lengths_of_transformers(accepting, start)]


def test_rounds_by_hand(draft, round_of):
    policy = Heuristic(length=8)
    for drafted, accepted in [(5, 5), (7, 7), (8, 8), (8, 3), (7, 0), (6, 6), (8, 7)]:
        assert len(draft(policy, SURE).tree) == 1 + drafted
        policy.observe(round_of(drafted, accepted))
    assert len(draft(policy, SURE).tree) == 1 + 7
    assert len(draft(policy.begin(None), SURE).tree) == 1 + 5  # another text


def test_a_chain_has_one_token_at_least_and_a_round_without_any_teaches_nothing(draft, round_of):
    policy = Heuristic(start=2)
    for drafted, accepted in [(2, 0), (1, 0), (1, 0), (0, 0)]:
        policy.observe(round_of(drafted, accepted))
        assert len(draft(policy, SURE).tree) == 1 + 1


def test_what_counts_is_whether_all_was_accepted_that_was_drafted(draft, round_of):
    policy = Heuristic()
    policy.observe(round_of(3, 3))  # the drafter knew no more than three tokens
    assert len(draft(policy, SURE).tree) == 1 + 7


@pytest.mark.parametrize("options", [{"start": 0}, {"length": 0}, {"length": 2.5}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Heuristic(**options)
