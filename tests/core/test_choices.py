"""The only source of randomness: enumerated exactly, drawn reproducibly."""

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import BLOCK, SeededChoices, enumerate_outcomes
from talon_core.testing import laws

FALSE_ALARM = 1e-9
"""Probability that one of the chi-square tests fails though the law is right; their seeds are fixed: none flickers."""


@st.composite
def experiments(draw):
    """Experiments of up to three draws, each from a law that depends on the draws before it, and its table of laws."""
    tables = [draw(st.lists(laws(3), min_size=3**step, max_size=3**step)) for step in range(draw(st.integers(0, 3)))]

    def experiment(choices):
        drawn = []
        for table in tables:
            drawn.append(choices.pick(table[sum(3**place * outcome for place, outcome in enumerate(drawn))]))
        return tuple(drawn)

    return experiment, tables


def by_brute_force(tables):
    """Each sequence of draws with the product of its probabilities, the impossible ones left out."""
    found = {}
    for drawn in itertools.product(range(3), repeat=len(tables)):
        prob = 1.0
        for step, table in enumerate(tables):
            prob *= table[sum(3**place * outcome for place, outcome in enumerate(drawn[:step]))][drawn[step]]
        if all(
            table[sum(3**place * outcome for place, outcome in enumerate(drawn[:step]))][drawn[step]] > 0
            for step, table in enumerate(tables)
        ):
            found[drawn] = prob
    return found


@given(experiments())
def test_an_enumeration_is_every_possible_outcome_once_with_its_probability(of):
    experiment, tables = of
    outcomes = [(drawn, prob) for prob, drawn in enumerate_outcomes(experiment)]
    assert len({drawn for drawn, _ in outcomes}) == len(outcomes)
    assert dict(outcomes).keys() == by_brute_force(tables).keys()
    for drawn, prob in by_brute_force(tables).items():
        assert dict(outcomes)[drawn] == pytest.approx(prob, rel=1e-12, abs=0)
    assert sum(prob for _, prob in outcomes) == pytest.approx(1.0, abs=1e-12)


def test_an_enumeration_follows_experiments_of_different_lengths():
    def until_heads(choices):
        tosses = 1
        while tosses < 5 and not choices.coin(0.25):
            tosses += 1
        return tosses

    law = defaultdict(float)
    for prob, tosses in enumerate_outcomes(until_heads):
        law[tosses] += prob
    assert dict(law) == pytest.approx({1: 1 / 4, 2: 3 / 16, 3: 9 / 64, 4: 27 / 256, 5: 81 / 256})


def test_numbers_that_are_told_are_those_that_draws_use():
    """Told or not, and used by somebody else or not: the next draw uses the next number of the seed."""
    law = np.full(1000, 1e-3)
    plain, told = SeededChoices(7), SeededChoices(7)
    drawn = [plain.pick(law) for _ in range(12)]
    assert told.pick(law) == drawn[0]
    assert (told.ahead(3) * 1000).astype(int).tolist() == drawn[1:4]
    assert told.pick(law) == drawn[1]
    assert (told.ahead(5) * 1000).astype(int).tolist() == drawn[2:7]
    told.used(4)
    assert (told.ahead(2) * 1000).astype(int).tolist() == drawn[6:8]
    told.used(3)  # one more than was told
    assert [told.pick(law) for _ in range(3)] == drawn[9:]
    told.ahead(1)[:] = 0.0  # what was told is the listener's own
    assert told.pick(law) == plain.pick(law)


def test_an_experiment_without_a_choice_has_one_outcome():
    assert list(enumerate_outcomes(lambda choices: "certain")) == [(1.0, "certain")]


@pytest.mark.parametrize(("prob", "expected"), [(0.0, [False]), (1.0, [True]), (0.5, [False, True])])
def test_a_coin_that_cannot_fall_on_a_side_never_does(prob, expected):
    assert [heads for _, heads in enumerate_outcomes(lambda choices: choices.coin(prob))] == expected
    seeded = SeededChoices(0)
    assert sorted({seeded.coin(prob) for _ in range(100)}) == expected


@given(st.lists(laws(5), min_size=1, max_size=10), st.integers(0, 2**32))
def test_the_same_seed_draws_the_same(several, seed):
    one, other = SeededChoices(seed), SeededChoices(seed)
    assert [one.pick(law) for law in several] == [other.pick(law) for law in several]


def test_other_seeds_and_no_seed_draw_otherwise():
    flat = np.full(1000, 1e-3)

    def drawn(seed):
        choices = SeededChoices(seed)
        return tuple(choices.pick(flat) for _ in range(20))

    assert len({drawn(1), drawn(2), drawn(None), drawn(None)}) == 4


@given(laws(7), st.integers(0, 2**32))
def test_what_has_no_probability_is_never_drawn(law, seed):
    choices = SeededChoices(seed)
    assert all(law[choices.pick(law)] > 0 for _ in range(20))


class Stub:
    """A generator that always gives the same number."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number


@pytest.mark.parametrize("number", [0.0, 1e-300, 0.5, 1 - 2**-53])
@given(law=laws(7))
def test_not_even_the_outermost_numbers_of_a_generator_draw_what_has_no_probability(number, law):
    choices = SeededChoices(0)
    choices._generator = Stub(number)
    assert law[choices.pick(law)] > 0


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_rounding_of_the_sum_never_leads_past_the_last_outcome(number):
    choices = SeededChoices(0)
    choices._generator = Stub(number)
    for excess in range(20):
        law = np.array([0.0, 0.25, 0.75 + excess * 2**-52, 0.0])
        assert choices.pick(law) in (1, 2)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=9), st.integers(0, 2**32))
def test_draws_follow_their_law(weights, seed):
    law = np.array(weights) / sum(weights)
    draws = 2000
    choices = SeededChoices(seed)
    counts = Counter(choices.pick(law) for _ in range(draws))
    statistic = sum((counts[outcome] - draws * p) ** 2 / (draws * p) for outcome, p in enumerate(law))
    assert statistic <= chi_square_limit(len(law) - 1)


def chi_square_limit(freedom):
    """Exceeded with probability FALSE_ALARM at most (Laurent and Massart, Annals of Statistics 28, 2000, eq. 4.3)."""
    x = -np.log(FALSE_ALARM)
    return freedom + 2 * np.sqrt(freedom * x) + 2 * x


UNIT = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 1 - 2**-53])


@settings(max_examples=300)
@given(st.integers(1, 3 * BLOCK + 5), st.sampled_from([0.0, 0.9, 0.999]), st.integers(0, 10_000), UNIT)
def test_draws_invert_the_cumulated_law_of_any_size(outcomes, empty, seed, number):
    rng = np.random.default_rng(seed)
    law = rng.exponential(size=outcomes) ** 3 * (rng.random(outcomes) >= empty)
    law[rng.integers(outcomes)] += 1e-3
    law /= law.sum()
    choices = SeededChoices()
    choices._generator = Stub(number)
    drawn = choices.pick(law)
    assert law[drawn] > 0
    assert law[:drawn].sum() <= number + 1e-12
    assert law[: drawn + 1].sum() >= number - 1e-12


@pytest.mark.parametrize("outcomes", [3, 2 * BLOCK])
@pytest.mark.parametrize("prob", [0.0, np.nan])
def test_what_cannot_come_out_is_not_drawn(outcomes, prob):
    with pytest.raises(ValueError, match=rf"nothing can be drawn from a law that sums to {prob}"):
        SeededChoices(0).pick(np.full(outcomes, prob))


@pytest.mark.parametrize(
    ("law", "sentence"),
    [
        ([np.nan, 0.5, 0.5], r"it drew from \[nan, 0.5, 0.5\], which holds NaN"),
        ([-1.0, 2.0], "which gives token 0 -1; no probability is negative"),
        ([0.0, 0.0], "which sums to 0"),
        ([[0.5, 0.5]], r"a law has one axis, .*; got shape \(1, 2\)"),
        (0.5, r"got shape \(\)"),
        ([], r"got shape \(0,\)"),
    ],
)
def test_what_is_no_law_is_refused_where_outcomes_are_enumerated(law, sentence):
    with pytest.raises(ValueError, match=sentence):
        list(enumerate_outcomes(lambda choices: choices.pick(law)))
