import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy
from talon_strategies import GammaTune, GammaTunePlus

SURE = TableDrafter([[0.9, 0.1]])


def lengths_by_definition(accepting, start, length, weight, growth):
    """How long each chain is, in exact thousandths, where so many tokens of each are accepted at most."""
    gamma, average = min(start, length), 1000.0 * start
    for most in accepting:
        yield gamma
        accepted = min(most, gamma)
        if accepted == gamma:
            gamma = min(accepted + growth, length)
        else:
            average = min(max((1 - weight) * average + weight * 1000 * accepted, 1000), 1000 * length)
            gamma = math.ceil(round(average, 6) / 1000)


@pytest.mark.parametrize("policy", [GammaTune, GammaTunePlus])
@pytest.mark.parametrize("options", [{}, {"length": 1}, {"start": 30, "growth": 0, "weight": 1}])
def test_keeps_the_contract(policy, options):
    check_tree_policy(lambda: policy(**options), max_examples=20)


@given(
    accepting=st.lists(st.integers(0, 12), max_size=12),
    start=st.integers(1, 12),
    length=st.integers(1, 10),
    weight=st.sampled_from([0.3, 0.05, 1.0]),
    growth=st.integers(0, 3),
)
def test_the_lengths_follow_the_rule(draft, round_of, accepting, start, length, weight, growth):
    policy = GammaTune(start=start, length=length, weight=weight, growth=growth)
    found = []
    for most in accepting:
        found.append(len(draft(policy, SURE).tree) - 1)
        policy.observe(round_of(found[-1], min(most, found[-1])))
    assert found == [*lengths_by_definition(accepting, start, length, weight, growth)]


def test_rounds_by_hand(draft, round_of):
    policy = GammaTune()
    # the average: 3, 3, 3, then .7 * 3 + .3 * 2 = 2.7, 1.89, 1.323, .926 and so 1, 1, 1; last .7 + .3 * 3 = 1.6
    rounds = [(3, 3), (5, 5), (7, 2), (3, 0), (2, 0), (2, 0), (1, 1), (3, 3), (5, 3), (2, 2)]
    for drafted, accepted in rounds:
        assert len(draft(policy, SURE).tree) == 1 + drafted
        policy.observe(round_of(drafted, accepted))
    assert len(draft(policy, SURE).tree) == 1 + 4
    assert len(draft(policy.begin(None), SURE).tree) == 1 + 3  # another text


def test_a_chain_never_grows_beyond_its_length(draft, round_of):
    policy = GammaTune()
    policy.observe(round_of(9, 9))
    assert len(draft(policy, SURE).tree) == 1 + 10


def test_a_round_without_any_drafted_token_teaches_nothing(draft, round_of):
    policy = GammaTune()
    for drafted, accepted in [(3, 3), (0, 0)]:
        policy.observe(round_of(drafted, accepted))
    assert len(draft(policy, SURE).tree) == 1 + 5


@pytest.mark.parametrize(("tau", "drafted"), [(0.6, 3), (0.7, 1), (0.0, 3)])
def test_plus_ends_a_chain_after_a_token_that_is_less_likely_than_tau(draft, tau, drafted):
    assert len(draft(GammaTunePlus(tau=tau), TableDrafter([[0.65, 0.35]])).tree) == 1 + drafted


@given(st.lists(st.integers(0, 25), max_size=200))
def test_with_hardly_any_weight_and_a_start_as_large_as_the_length_the_length_stays(accepting):
    policy = GammaTunePlus(length=25, start=25, growth=25, weight=1e-9)
    for accepted in accepting:
        assert policy.planned == 25
        policy.learn(25, accepted)


@pytest.mark.parametrize("options", [{"start": 0}, {"weight": 0}, {"weight": 1.1}, {"growth": -1}, {"tau": 1.1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        GammaTunePlus(**options)
