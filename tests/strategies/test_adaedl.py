import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import AdaEdl
from talon_strategies.entropy import OFFERED
from talon_tests.entropies import WIDE, bound, entropy


@pytest.mark.parametrize(
    "options", [{}, {"length": 1}, {"step": 1.0, "goal": 0.0, "weight": 1}, {"factor": 50.0, "threshold": 1}]
)
def test_keeps_the_contract(options):
    check_tree_policy(lambda: AdaEdl(**options), max_examples=20)


@given(
    drafter=st.integers(2, 16).flatmap(untied_drafters),
    threshold=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    step=st.sampled_from([0.0, 0.1, 1.0]),
    before=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4),
)
def test_the_chain_ends_where_the_bound_is_below_a_threshold_that_moves(
    draft, chain_until, round_of, drafter, threshold, step, before
):
    policy = AdaEdl(length=9, threshold=threshold, goal=0.6, step=step, weight=0.25)
    average = 0.6
    for drafted, accepted in before:
        accepted = min(drafted, accepted)
        policy.observe(round_of(drafted, accepted))
        if drafted:
            average = 0.75 * average + 0.25 * accepted / drafted
            assume(abs(average - 0.6) > 1e-9)
            threshold = min(1.0, max(0.0, threshold + (step if average < 0.6 else -step)))

    def ends(law):
        bound = 1 - np.sqrt(0.2 * -(law[law > 0] * np.log(law[law > 0])).sum())
        assume(abs(bound - threshold) > 1e-9)
        return bound < threshold

    assert draft(policy, drafter).tree.tokens.tolist() == chain_until(drafter, 9, ends)


@given(drafter=st.integers(OFFERED + 2, 90).flatmap(untied_drafters), threshold=st.sampled_from([0.2, 0.4, 0.6, 0.8]))
def test_with_more_tokens_than_are_looked_at_a_lower_bound_ends_the_chain_and_no_sooner(
    draft, chain_until, drafter, threshold
):
    def chain_by(known):
        def ends(law):
            least = 1 - np.sqrt(0.2 * known(law))
            assume(abs(least - threshold) > 1e-9)
            return least < threshold

        return chain_until(drafter, 9, ends)

    tokens = draft(AdaEdl(length=9, threshold=threshold), drafter).tree.tokens.tolist()
    papers = chain_by(entropy)
    assert tokens == chain_by(bound)
    assert tokens[: len(papers)] == papers


def test_a_chain_may_be_as_long_as_can_be_where_the_papers_ends_at_once(draft):
    assert 1 - np.sqrt(0.2 * np.array([entropy(WIDE), bound(WIDE)])) == pytest.approx([0.549, 0.740], abs=1e-3)
    assert len(draft(AdaEdl(length=9, threshold=0.6), TableDrafter([WIDE])).tree) == 1 + 9


def test_four_rounds_by_hand(draft, round_of):
    drafter = TableDrafter([[0.5, 0.25, 0.25]])  # H = 1.0397 nats; 1 - sqrt(0.2 H) = 0.5440
    policy = AdaEdl(length=4, threshold=0.55, goal=0.75, step=0.01)
    assert len(draft(policy, drafter).tree) == 1 + 1
    policy.observe(round_of(1, 1))  # the average is (0.75 + 1) / 2 = 0.875, not below 0.75: 0.55 - 0.01 = 0.54
    assert len(draft(policy, drafter).tree) == 1 + 4
    policy.observe(round_of(4, 4))  # 0.9375, and all of the longest chain was accepted: it stays
    assert len(draft(policy, drafter).tree) == 1 + 4
    policy.observe(round_of(4, 1))  # 0.59375, below 0.75: 0.55
    assert len(draft(policy, drafter).tree) == 1 + 1
    assert len(draft(policy.begin(None), drafter).tree) == 1 + 1  # another text begins at 0.55


def test_the_defaults_are_the_papers(round_of):
    policy = AdaEdl()
    assert (policy.factor, policy.goal, 1 - policy.weight) == (0.2, 0.9, 0.5)  # gamma, alpha and beta_1
    assert policy.step == pytest.approx(0.01 * (1 - 0.9))  # epsilon, smoothed with beta_2
    policy.observe(round_of(4, 1))
    assert policy.learnt.accepted == pytest.approx(0.5 * 0.9 + 0.5 * 0.25)
    assert policy.learnt.now == pytest.approx(0.9 * 0.5 + 0.1 * (0.5 + 0.01))


@pytest.mark.parametrize(
    "options",
    [{"threshold": 1.1}, {"threshold": -0.1}, {"factor": 0}, {"goal": 1.5}, {"step": -0.1}, {"step": 2}, {"weight": 0}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        AdaEdl(**options)
