"""Upper confidence bounds: by hand, and as bandits are known to behave."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from talon_strategies.ucb import BOUNDS, Arm, Played, next_arm, tuned, ucb1, ucbspec


def arm_of(*gains):
    arm = Arm()
    for gain in gains:
        arm.brought(gain)
    return arm


def test_what_an_arm_has_brought_by_hand():
    arm = arm_of(3.0, 1.0, 5.0)
    assert (arm.rounds, arm.mean, arm.largest) == (3, 3.0, 5.0)
    assert arm.variance == pytest.approx(8 / 3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_its_variance_is_the_usual_one(gains):
    arm = arm_of(*gains)
    assert (arm.mean, arm.variance) == (pytest.approx(np.mean(gains)), pytest.approx(np.var(gains), abs=1e-9))


def test_bounds_by_hand():
    played = Played(arms=2, rounds=8, own=2, variance=0.01)
    assert ucb1(played) == pytest.approx(math.sqrt(2 * math.log(8) / 2)) == pytest.approx(1.4420, abs=1e-4)
    assert tuned(played) == pytest.approx(math.sqrt(math.log(8) / 2 / 4))  # 0.01 and UCB1 are more than a quarter
    often = Played(arms=2, rounds=1000, own=900, variance=0.01)
    assert tuned(often) == pytest.approx(math.sqrt(math.log(1000) / 900 * (0.01 + math.sqrt(2 * math.log(1000) / 900))))
    # (1 + 2) / 4 = 0.75; ln(2 * 64 * sqrt 3 / 0.1) = 7.704
    assert ucbspec(played) == pytest.approx(0.5 * math.sqrt(0.75 * (1 + 2 * 7.7039)), abs=1e-4)


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS.keys())
def test_a_bound_falls_with_an_arms_own_rounds_and_rises_with_those_of_others(bound):
    own = [bound(Played(3, 50, played, 0.04)) for played in range(1, 50)]
    others = [bound(Played(3, rounds, 5, 0.04)) for rounds in range(5, 50)]
    assert own == sorted(own, reverse=True)
    assert others == sorted(others)


def test_each_arm_is_played_once_in_order_and_equals_go_to_the_first():
    arms = [Arm(), Arm(), Arm()]
    for place in range(3):
        assert next_arm(arms, [1.0] * 3, "ucb1", 1.0) == place
        arms[place].brought(1.0)
    assert next_arm(arms, [1.0] * 3, "ucb1", 1.0) == 0
    assert next_arm([arm_of(1), arm_of(2), arm_of(2)], [1.0] * 3, "tuned", 0.0) == 1
    assert next_arm([arm_of(0), arm_of(0)], [1.0] * 2, "tuned", 0.0) == 0


def test_an_arm_that_had_few_rounds_is_tried_again():
    # by the largest gain: 1 + sqrt(2 ln 10 / 8) = 1.759 against 5/6 + sqrt(2 ln 10 / 2) = 2.351; 1.076 against 0.985
    arms = [arm_of(*[0.6] * 8), arm_of(0.5, 0.5)]
    assert next_arm(arms, [1.0, 1.0], "ucb1", 1.0) == 1
    assert next_arm(arms, [1.0, 1.0], "ucb1", 0.1) == 0


def test_what_an_arm_costs_divides_its_reward():
    # 4 tokens for 1.6 and 2 for 1, so 2.5 and 2; then 4 for 2.5, 1.6
    arms = [arm_of(4.0, 4.0), arm_of(2.0, 2.0)]
    assert next_arm(arms, [1.6, 1.0], "tuned", 0.0) == 0
    assert next_arm(arms, [2.5, 1.0], "tuned", 0.0) == 1


def test_a_bound_by_hand():
    # tuned, 2 arms of 4 and 1 rounds; the largest reward is 5 / 2
    # the first: mean 3 / 2, by the largest 0.6; variance (1 + 4 + 1 + 4) / 4 / 25 = 0.1, and with UCB1 more than 0.25;
    # 0.6 + sqrt(ln 5 / 4 / 4) = 0.917, and with a tenth of the bound 0.632
    # the second: mean 2 / 1, by the largest 0.8; 0.8 + sqrt(ln 5 / 4) = 1.434, and 0.863
    arms = [arm_of(4, 1, 2, 5), arm_of(2)]
    assert arms[0].variance == 2.5
    assert next_arm(arms, [2.0, 1.0], "tuned", 1.0) == 1
    assert next_arm(arms, [2.0, 1.0], "tuned", 0.1) == 1
    assert next_arm(arms, [2.0, 2.0], "tuned", 0.1) == 0  # 0.632 against 0.463
    assert next_arm(arms, [2.0, 2.0], "tuned", 0.8) == 1  # 0.854 against 0.907


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=2, max_size=4),
    st.sampled_from([*BOUNDS]),
    st.sampled_from([0.5, 4.0, 64.0]),
)
def test_neither_the_unit_of_gains_nor_that_of_costs_matters(gains, bound, unit):
    """Powers of two, so that nothing is rounded."""
    costs = [1.0, 2.0, 4.0, 0.5][: len(gains)]
    plain = next_arm([arm_of(*one) for one in gains], costs, bound, 1.0)
    assert plain == next_arm([arm_of(*(gain * unit for gain in one)) for one in gains], costs, bound, 1.0)
    assert plain == next_arm([arm_of(*one) for one in gains], [cost * unit for cost in costs], bound, 1.0)


@pytest.mark.parametrize("bound", ["tuned", "ucb1"])
def test_the_best_arm_is_played_most(bound):
    """Coins that fall right with 0.3, 0.5 and 0.8."""
    rng, chances = np.random.default_rng(0), (0.3, 0.5, 0.8)
    arms = [Arm(), Arm(), Arm()]
    for _ in range(1500):
        place = next_arm(arms, [1.0] * 3, bound, 1.0)
        arms[place].brought(float(rng.random() < chances[place]))
    assert arms[2].rounds > 1000
    assert min(arm.rounds for arm in arms) > 1  # and none is given up after the first


CHAINS = (2, 5, 8)
COSTS = [1.0 + 0.15 * length for length in CHAINS]


def speed(choose, texts=100):
    """Geometric mean over texts of 128 tokens, in tokens by passes over the root; layers cost 0.1 and nodes 0.05.

    Each text has an acceptance rate of its own, the same ones for every choice.
    """
    logs = []
    for seed in range(texts):
        rng = np.random.default_rng(seed)
        rate, arms = rng.uniform(0.2, 0.95), [Arm(), Arm(), Arm()]
        while sum(arm.gain for arm in arms) < 128:
            place = choose(arms)
            arms[place].brought(1.0 + min(rng.geometric(1 - rate) - 1, CHAINS[place]))
        spent = sum(arm.rounds * cost for arm, cost in zip(arms, COSTS, strict=True))
        logs.append(math.log(sum(arm.gain for arm in arms) / spent))
    return math.exp(sum(logs) / texts)


def test_over_texts_that_differ_it_beats_each_of_its_arms_and_the_papers_bounds():
    ours = speed(lambda arms: next_arm(arms, COSTS, "tuned", 0.2))
    assert ours > 1.01 * max(speed(lambda arms, place=place: place) for place in range(3))
    for bound in BOUNDS:
        assert ours > 1.02 * speed(lambda arms, bound=bound: next_arm(arms, COSTS, bound, 1.0))
