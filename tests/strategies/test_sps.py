"""The length of classic speculative sampling: the paper's formula, worked out otherwise."""

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_core.policy import SequenceInfo
from talon_core.testing import TableDrafter, check_tree_policy
from talon_strategies import Sps
from talon_tests.prices import Prices

SURE = TableDrafter([[0.9, 0.1]])


def served(costs=None, **options):
    info = SequenceInfo(prompt_length=30, max_new_tokens=64, temperature=0.0)
    return Sps(**options).begin(info if costs is None else attrs.evolve(info, costs=costs))


@pytest.mark.parametrize("options", [{}, {"length": 1}, {"start": 0}, {"start": 1, "length": 40}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: Sps(**options), max_examples=20)


def improvement(a, c, gamma):
    """Theorem 3.8 of arXiv 2211.17192."""
    return (1 - a ** (gamma + 1)) / ((1 - a) * (gamma * c + 1))


def tokens_enumerated(a, gamma):
    """Expected tokens of a round, over every way in which `gamma` tests may come out."""
    total = 0.0
    for tests in itertools.product((True, False), repeat=gamma):
        chance = 1.0
        for passed in tests:
            chance *= a if passed else 1 - a
        total += chance * (1 + len([*itertools.takewhile(bool, tests)]))
    return total


@given(st.floats(0.05, 0.95), st.integers(0, 7))
def test_what_a_round_brings_is_the_papers_formula(a, gamma):
    assert improvement(a, 0.0, gamma) == pytest.approx(tokens_enumerated(a, gamma))


@pytest.mark.parametrize("a", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("c", [0.02, 0.1, 0.4])
def test_where_nodes_are_free_the_length_is_the_papers(draft, a, c):
    best = max(range(1, 26), key=lambda gamma: improvement(a, c, gamma))
    assert len(draft(served(Prices(node=0.0, layer=c), start=a, length=25), SURE).tree) == 1 + best


def test_a_length_by_hand(draft):
    # a = 0.8, a layer 0.1, a node 0.05 of a pass over the root: 1.8 / 1.15 = 1.565, 2.44 / 1.3 = 1.877,
    # 2.952 / 1.45 = 2.036, 3.3616 / 1.6 = 2.101, 3.68928 / 1.75 = 2.108, 3.951424 / 1.9 = 2.080
    assert len(draft(served(Prices(node=0.05, layer=0.1), start=0.8), SURE).tree) == 1 + 5
    assert len(draft(served(start=0.8), SURE).tree) == 1 + 5  # so much is assumed
    assert len(draft(served(Prices(node=0.0, layer=0.1), start=0.8), SURE).tree) == 1 + 6
    assert len(draft(served(Prices(node=1.0, layer=0.1), start=0.8), SURE).tree) == 1 + 1


def test_the_rate_is_what_was_accepted_of_what_was_tested(round_of):
    policy = served(start=0.5, weight=4.0)
    for drafted, accepted in [(5, 5), (6, 2), (3, 0), (0, 0)]:
        policy.observe(round_of(drafted, accepted))
    # two of four in advance; then 5 of 5, 2 of 3, 0 of 1
    assert policy.rate == pytest.approx((2 + 5 + 2 + 0) / (4 + 5 + 3 + 1))
    assert served(start=0.5, weight=4.0).rate == 0.5


@given(a=st.sampled_from([0.2, 0.5, 0.8]), seed=st.integers(0, 5))
def test_the_rate_is_found_by_rounds_at_that_rate(round_of, a, seed):
    import numpy as np

    rng, policy = np.random.default_rng(seed), served()
    for _ in range(400):
        accepted = int(min(rng.geometric(1 - a) - 1, 4))
        policy.observe(round_of(4, accepted))
    assert policy.rate == pytest.approx(a, abs=0.08)


def test_more_is_drafted_where_more_is_accepted_and_each_text_begins_anew(draft, round_of):
    policy = served(Prices(node=0.05, layer=0.1))
    lengths = [len(draft(policy, SURE).tree)]
    for accepted in (4, 4, 4, 4):
        policy.observe(round_of(4, accepted))
        lengths.append(len(draft(policy, SURE).tree))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert len(draft(policy.begin(SequenceInfo(5, 5, 0.0)), SURE).tree) == lengths[0]
    for _ in range(40):
        policy.observe(round_of(4, 0))
    assert len(draft(policy, SURE).tree) == 2  # never less: what is not drafted shows nothing


def test_costs_are_asked_at_the_length_of_the_text(draft, round_of):
    costs = Prices(node=0.1, layer=0.1)
    policy = served(costs)
    draft(policy, SURE)
    assert set(costs.asked) == {30}
    policy.observe(attrs.evolve(round_of(0, 0), context=30))
    costs.asked.clear()
    draft(policy, SURE)
    draft(policy, SURE)
    assert set(costs.asked) == {31}
    assert len(costs.asked) == 12  # once a round


@pytest.mark.parametrize("options", [{"length": 0}, {"start": 1.1}, {"weight": 0}, {"weight": float("inf")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Sps(**options)
