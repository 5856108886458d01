"""What is said of a comparison: what to measure more of, and what not to use."""

from itertools import count

import numpy as np
import pytest

from talon_core.bench.advice import advice
from talon_core.bench.bootstrap import Interval, mean_with_interval, median_with_interval
from talon_core.bench.compare import compare
from talon_core.bench.results import read_results


@pytest.fixture
def compared(folder_of, measurement):
    """A run in which plain decoding takes a second for each prompt, and other methods so many."""

    number = count()

    def make(seconds, baseline="none", **sets):
        specs = [name for name in seconds if name != "none"]
        lines = []
        sizes = sets or {"qa": max(map(len, seconds.values()))}
        for name in sizes:
            for prompt in range(sizes[name]):
                lines.append(measurement("none", prompt, set=name))
                lines += [measurement(spec, prompt, seconds[spec][prompt], set=name) for spec in specs]
        return compare(read_results(folder_of(lines, str(next(number)), specs=specs, sets=sizes)), baseline)

    return make


def around(ratio, spread, prompts, seed=0):
    """Seconds whose ratios to one second are so many, with this standard deviation of their logarithms."""
    return (1 / np.random.default_rng(seed).lognormal(np.log(ratio), spread, prompts)).tolist()


def test_a_clear_gain_on_enough_prompts_needs_no_word(compared):
    assert advice(compared({"ngram": around(1.5, 0.1, 20)})) == []


def test_few_prompts_are_warned_of(compared):
    first, *_ = advice(compared({"ngram": [0.5] * 9}))
    assert first.startswith("warning: 9 prompts only; with fewer than 10, medians and their intervals say little")
    assert not any("warning" in sentence for sentence in advice(compared({"ngram": [0.5] * 10})))


def test_sets_of_few_prompts_are_warned_of_by_name(compared):
    [said] = advice(compared({"ngram": [0.5] * 12}, qa=12, sum=3, code=9))
    assert said == "warning: fewer than 10 prompts in sum (3), code (9); figures by set say little there"


def test_a_method_that_is_slower_than_plain_decoding_should_not_be_used(compared):
    [said] = advice(compared({"ngram": around(0.8, 0.1, 30)}))
    assert said.startswith("ngram is slower than none here (0.7")
    assert "should not be used with this model on this machine" in said


def test_that_is_said_whatever_the_baseline_is(compared):
    found = compared({"ngram": around(0.8, 0.1, 30), "ngram/chain": around(0.4, 0.1, 30, 1)}, "ngram/chain")
    assert found.all["ngram"].ratio.low > 1
    assert found.all["ngram"].to_plain.high < 1
    said = " ".join(advice(found))
    assert "ngram is slower than none here" in said
    assert "ngram/chain is slower than none here" in said


def test_of_transformers_own_loop_it_is_not_said(compared):
    assert advice(compared({"generate": around(0.5, 0.1, 30)})) == []


def test_where_it_is_slower_on_some_sets_only_they_are_named(folder_of, measurement):
    lines = [
        measurement(method, prompt, seconds, set=name)
        for name, its in (("qa", 0.5), ("sum", 1.25), ("code", 0.5), ("tiny", 2.0))
        for prompt in range({"qa": 30, "tiny": 2}.get(name, 12))
        for method, seconds in (("none", 1.0), ("ngram", its))
    ]
    found = compare(read_results(folder_of(lines, sets={"qa": 30, "sum": 12, "code": 12, "tiny": 2})))
    assert [each for each in advice(found) if "warning" not in each] == [
        "ngram is slower than none on sum (0.80x, 0.80 to 0.80); it should not be used for such prompts here"
    ]


def test_an_undecided_ratio_says_how_many_more_prompts_would_decide(compared):
    found = compared({"ngram": around(1.08, 0.3, 20)})
    ratio, more = found.all["ngram"].ratio, found.all["ngram"].more_prompts
    assert ratio.low < 1 < ratio.high
    assert found.as_dict()["all"]["ngram"]["more_prompts"] == more > 0
    [said] = advice(found)
    assert said.startswith("whether ngram is faster than none is not decided (")
    assert f"about {more:,} more prompts like these would decide it (an estimate" in said


def test_what_is_equally_fast_is_not_measured_for_ever(compared):
    found = compared({"ngram": [0.5, 2.0] * 10})
    assert found.all["ngram"].ratio.median == pytest.approx(1.25)
    [said] = advice(compared({"ngram": [*[0.5, 2.0] * 10, 1.0]}))
    assert said.endswith("they are about equally fast, and no number of prompts that is worth measuring will tell")


@pytest.mark.parametrize(
    ("interval", "needed"),
    [
        (Interval(1.2, 1.1, 1.3, 20), None),
        (Interval(0.9, 0.8, 0.95, 20), None),
        (Interval(2.0, 0.5, 8.0, 20), 80),  # half as wide on the scale of logarithms: a quarter of the width, squared
        (Interval(0.5, 0.125, 2.0, 20), 80),
        (Interval(2.0, 1.0, 4.0, 20), 20),
        (Interval(1.0, 0.5, 2.0, 20), np.inf),
        (Interval(2.0, None, None, 1), None),
    ],
)
def test_an_interval_narrows_with_the_square_root_of_the_number_of_prompts(interval, needed):
    assert interval.prompts_to_decide == (None if needed is None else pytest.approx(needed))


def test_the_estimate_is_about_the_number_that_decides():
    """The interval of a median is 1.96 * 1.2533 * spread / sqrt(n) to each side, on the scale of logarithms."""
    gain, spread = 0.1, 0.3
    needed = (1.96 * 1.2533 * spread / gain) ** 2
    rng = np.random.default_rng(0)
    found = [median_with_interval(rng.lognormal(gain, spread, 25).tolist(), resamples=1000) for _ in range(300)]
    estimates = [each.prompts_to_decide for each in found if each.straddles_one and each.median > 1.03]
    assert len(estimates) > 100
    assert needed / 2 < np.median(estimates) < needed * 3  # those that straddle have lower ratios than there are


def test_ratios_of_one_prompt_are_not_decided_and_not_estimated(compared):
    found = compared({"ngram": [2.0]})
    assert found.all["ngram"].more_prompts is None
    assert [each for each in advice(found) if "warning" not in each] == []


def test_tokens_per_pass_have_an_interval_whatever_the_baseline_is(folder_of, measurement):
    lines = [
        measurement(name, prompt, target_passes=passes, set=of)
        for of in ("qa", "sum")
        for prompt in range(4)
        for name, passes in (("none", 10), ("ngram", 4 + prompt))
    ]
    results = read_results(folder_of(lines, sets={"qa": 4, "sum": 4}))
    for baseline in ("none", "ngram"):
        found = compare(results, baseline)
        for summary in (found.all["ngram"], found.sets["qa"]["ngram"]):
            assert summary.mat.median == summary.mean_accepted_tokens == pytest.approx(40 / 22)
            assert 10 / 7 <= summary.mat.low < summary.mat.median < summary.mat.high <= 10 / 4
        assert found.all["ngram"].mat_of_sets.low < found.all["ngram"].mat_of_sets.median
        assert found.all["none"].mat.low == found.all["none"].mat.high == 1
        assert found.all["ngram"].speed.median == found.all["ngram"].tokens_per_second


def test_the_mean_of_sets_draws_from_each_set_by_itself():
    sets = [np.full((5, 2), [10.0, 2.0]), np.full((3, 2), [10.0, 10.0])]
    found = mean_with_interval(sets, lambda drawn: (drawn[..., 0] / drawn[..., 1]).mean(axis=1))
    assert (found.median, found.low, found.high, found.prompts) == (3, 3, 3, 8)
    one = mean_with_interval([sets[0], sets[1][:1]], lambda drawn: drawn[..., 0].mean(axis=1))
    assert one.low is None
