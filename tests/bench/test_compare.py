"""Comparisons, by hand and by simulation."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from talon_core.bench.bootstrap import median_with_interval
from talon_core.bench.compare import compare, speeds
from talon_core.bench.measurement import first_difference
from talon_core.bench.results import MANIFEST, read_results
from talon_core.bench.tables import tables


@pytest.fixture
def lines(measurement):
    """Prompts that take plain decoding one second each and the other method so many."""

    def make(seconds):
        pairs = (
            (measurement("none", prompt), measurement("ngram", prompt, its, target_passes=4))
            for prompt, its in enumerate(seconds)
        )
        return [line for pair in pairs for line in pair]

    return make


def shown(comparison, width=120):
    console = Console(file=io.StringIO(), width=width)
    for table in tables(comparison):
        console.print(table)
    return console.file.getvalue()


def test_ratios_are_paired_prompt_by_prompt(folder_of, measurement):
    slow_and_fast = [
        measurement("none", 0, 10.0),
        measurement("ngram", 0, 5.0),
        measurement("none", 1, 1.0),
        measurement("ngram", 1, 2.0),
        measurement("none", 2, 4.0),
        measurement("ngram", 2, 1.0),
    ]
    found = compare(read_results(folder_of(slow_and_fast)))
    fast = found.all["ngram"]
    assert fast.ratio.median == 2  # of 2, 1/2 and 4
    assert (fast.ratio.low, fast.ratio.high, fast.ratio.prompts) == (0.5, 4, 3)
    assert fast.tokens_per_second == 5  # of 2, 5 and 10
    assert found.all["none"].ratio.median == found.all["none"].ratio.low == 1


def test_hits_are_shares_of_the_rounds_for_which_something_was_prepared(folder_of, measurement):
    told = [{"hits": 3, "misses": 1}, {"hits": 0, "misses": 4}]
    lines = [measurement("none", prompt) for prompt in range(2)]
    lines += [measurement("ngram@cached", prompt, stats=own) for prompt, own in enumerate(told)]
    found = compare(read_results(folder_of(lines, specs=["ngram@cached"])))
    assert (found.all["ngram@cached"].hits, found.all["none"].hits) == (3 / 8, None)
    assert "hits: rounds that began with what was prepared" in shown(found)
    assert "38%" in shown(found)
    plain = compare(read_results(folder_of(lines[:2], "alone", specs=[])))
    assert "hits" not in shown(plain)


def test_tokens_per_pass_are_compared_as_totals_of_the_prompts_that_both_decoded(folder_of, measurement):
    """Ten tokens each; plain decoding takes ten passes, the others fewer."""
    passes = {"ngram": (2, 4, 4), "ngram/chain": (4, 4, 8)}
    lines = [measurement("none", prompt) for prompt in range(3)]
    lines += [measurement(name, n, target_passes=took[n]) for name, took in passes.items() for n in range(3)]
    results = read_results(folder_of(lines, specs=["ngram", "ngram/chain"]))
    found = compare(results, "ngram/chain").all["ngram"]
    mine, theirs = 30 / 10, 30 / 16
    assert found.mat_ratio.median == pytest.approx(mine / theirs)
    assert found.accepted_ratio.median == pytest.approx((mine - 1) / (theirs - 1))
    assert found.mat_ratio.low <= found.mat_ratio.median <= found.mat_ratio.high
    assert found.mat_ratio.prompts == 3
    assert compare(results).all["ngram"].accepted_ratio is None  # plain decoding accepts nothing
    assert compare(results).all["ngram"].mat_ratio.median == pytest.approx(mine)
    assert "accepted ratio" in shown(compare(results, "ngram/chain"))
    assert "accepted ratio" not in shown(compare(results))


def test_another_baseline_turns_the_ratios_round(folder_of, lines):
    results = read_results(folder_of(lines([0.5, 0.25, 0.5])))
    assert compare(results).all["ngram"].ratio.median == 2
    assert compare(results, "ngram").all["none"].ratio.median == 0.5
    with pytest.raises(LookupError, match=r"no method 'chain'.* there are: none, ngram"):
        compare(results, "chain")
    with pytest.raises(LookupError, match=r"no method 'ngrm' in .*; did you mean 'ngram'\? there are: none, ngram"):
        compare(results, "ngrm")


def test_repetitions_are_reduced_to_their_median_and_turns_to_their_sum(measurement):
    repeated = [measurement("none", 0, seconds, repetition=number) for number, seconds in enumerate([1.0, 5.0, 2.0])]
    assert speeds(repeated) == {("qa", 0): 5.0}
    talk = [measurement("none", 0, 1.0), measurement("none", 0, 4.0, turn=1, token_ids=[1, 2, 3, 4, 5])]
    assert speeds(talk) == {("qa", 0): 3.0}


def test_tokens_per_pass_are_pooled_and_averaged_over_sets(folder_of, lines, measurement):
    two = [*lines([1.0, 1.0, 1.0]), measurement("none", set="sum"), measurement("ngram", set="sum", target_passes=10)]
    found = compare(read_results(folder_of(two, sets={"qa": 3, "sum": 1})))
    assert found.sets["qa"]["ngram"].mean_accepted_tokens == 2.5
    assert found.sets["sum"]["ngram"].mean_accepted_tokens == 1
    assert found.all["ngram"].mean_accepted_tokens == 40 / 22
    assert found.all["ngram"].mean_of_sets == 1.75
    assert found.all["ngram"].measurements == 4
    text = shown(found)
    assert "4 prompts of 2 sets" in text
    assert "qa (3)" in text
    assert max(map(len, text.splitlines())) <= 120


def test_shares_and_draft_passes_are_those_of_all_measurements_together(folder_of, measurement):
    parts = {"prefill_seconds": 0.25, "verify_seconds": 0.5, "draft_passes": 6}
    found = compare(read_results(folder_of([measurement("none"), measurement("ngram", target_passes=4, stats=parts)])))
    assert found.all["ngram"].outside_target == 0.25
    assert found.all["ngram"].draft_passes_per_round == 1.5


def depth_lines(measurement, *lines):
    """Rows of depth, offered, parent_accepted, tested and accepted; a shorter row is one of an older version."""
    names = ("depth", "offered", "accepted", "parent_accepted", "tested")
    for prompt, rows in enumerate(lines):
        counted = [dict(zip(names, row, strict=False)) for row in rows]
        rounds = rows[0][3] if len(rows[0]) > 3 else 10
        drafted = measurement("ngram", prompt, acceptance_by_depth=counted, target_passes=rounds)
        yield from (measurement("none", prompt), drafted)


def test_acceptance_is_added_up_depth_by_depth(folder_of, measurement):
    of = [*depth_lines(measurement, [(1, 4, 3, 5, 4), (2, 2, 1, 3, 1)], [(1, 6, 1, 6, 6)])]
    found = compare(read_results(folder_of(of)))
    first, second = found.all["ngram"].acceptance_by_depth
    assert (first["offered"], first["parent_accepted"], first["tested"], first["accepted"]) == (10, 11, 10, 4)
    assert (first["rate"], first["rate_after_parent"], first["rate_where_tested"]) == (0.4, 4 / 11, 0.4)
    assert second["parent_accepted"] == first["accepted"]  # the second prompt's path came to depth 1, too
    assert (second["rate"], second["rate_after_parent"], second["rate_where_tested"]) == (0.5, 1 / 4, 1)
    assert found.all["none"].acceptance_by_depth == []
    text = shown(found)
    assert "40%" in text
    assert "4/10" in text
    assert "1/1" in text


def test_lines_that_do_not_count_accepted_parents_are_still_compared(folder_of, measurement):
    of = [*depth_lines(measurement, [(1, 4, 3)], [(1, 6, 1, 6, 6)])]
    found = compare(read_results(folder_of(of)))
    [row] = found.all["ngram"].acceptance_by_depth
    assert row["rate"] == 0.4
    assert row["tested"] is row["rate_where_tested"] is None
    assert row["rate_after_parent"] == 4 / 16  # of all rounds, which every line counts
    assert "40%" in shown(found)


@pytest.mark.parametrize("row", [3, {}, {"depth": 1}, {"depth": 1, "offered": "4", "accepted": 1}])
def test_a_line_whose_counts_are_none_is_refused_in_a_sentence(folder_of, measurement, row):
    folder = folder_of([measurement("none"), measurement("ngram", acceptance_by_depth=[row])])
    with pytest.raises(ValueError, match=r"'acceptance_by_depth' has at 0 .* it must be a depth and counts of rounds"):
        read_results(folder)


def test_a_wrong_output_is_found_whatever_its_line_says(folder_of, lines, measurement):
    wrong = measurement("ngram", 1, token_ids=[0, 1, 2, 9, 4, 5, 6, 7, 8, 9], identical=True, logit_gap=1e-6)
    found = compare(read_results(folder_of([*lines([1.0]), measurement("none", 1), wrong])))
    fast = found.all["ngram"]
    assert (fast.identical, fast.compared) == (1, 2)
    assert [(each.prompt, each.first_difference) for each in fast.differences] == [(1, 3)]
    assert found.all["none"].identical == 2
    text = shown(found)
    assert "1/2" in text
    assert "ngram differs from none on prompt 1 of qa" in text
    assert "from token 3 on" in text


LOSSY = "ngram//typical"


def test_lossy_methods_are_marked_wherever_they_are_shown(folder_of, measurement):
    depths = [{"depth": 1, "offered": 2, "accepted": 1}]
    of = [
        line
        for name in ("qa", "sum")
        for line in (
            measurement("none", set=name),
            measurement("ngram", set=name, acceptance_by_depth=depths),
            measurement(LOSSY, set=name, acceptance_by_depth=depths, token_ids=[7] * 10, lossless=False),
        )
    ]
    found = compare(read_results(folder_of(of, specs=["ngram", LOSSY], sets={"qa": 1, "sum": 1})))
    for summaries in (found.all, *found.sets.values()):
        assert {name: summary.lossless for name, summary in summaries.items()} == {
            **{"none": True, "ngram": True},
            LOSSY: False,
        }
    assert found.as_dict()["all"][LOSSY]["lossless"] is False
    rows = [line for line in shown(found).splitlines() if LOSSY in line]
    assert len(rows) == 5 + 2 + 1  # tables; differences; and whether it is faster
    assert all(f"{LOSSY} (lossy)" in row for row in rows)
    assert shown(found).count("(lossy)") == len(rows)
    assert sum("differs from none" in row for row in rows) == 2


def test_a_method_that_is_lossless_by_its_own_word_is_shown_so(folder_of, measurement):
    of = [measurement("none"), measurement("ngram", lossless="claimed", token_ids=[7] * 10)]
    folder = folder_of(of)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["settings"]["methods"][1]["lossless"] = "claimed"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    found = compare(read_results(folder))
    assert found.as_dict()["all"]["ngram"]["lossless"] == "claimed"
    text = shown(found)
    assert "ngram (claimed) differs from none" in text
    assert "(lossy)" not in text


def test_drawn_outputs_are_not_compared(folder_of, measurement):
    drawn = [measurement("none", seed=0), measurement("ngram", token_ids=[7, 7], seed=0)]
    found = compare(read_results(folder_of(drawn, temperature=1.0)))
    assert (found.all["ngram"].identical, found.all["ngram"].compared) == (None, 0)
    assert "drawn" in shown(found)


def test_what_is_not_known_of_generate_is_left_open(folder_of, measurement):
    stats = {"rounds": None, "target_passes": None, "draft_passes": None, "prefill_seconds": None}
    own = measurement("generate", 0, 2.0, stats=stats, acceptance_by_depth=None)
    found = compare(read_results(folder_of([measurement("none"), own], specs=["generate"])))
    summary = found.all["generate"]
    assert summary.ratio.median == 0.5
    assert summary.ratio.low is None  # one prompt has no interval
    assert summary.mean_accepted_tokens is summary.draft_passes_per_round is summary.outside_target is None
    assert "0.50x" in shown(found)


def test_what_a_peer_says_of_its_prompts_is_shown_without_them(folder_of, measurement):
    """Ten tokens in two seconds, half a second of which went into the prompt."""
    own = {"prefill_seconds": 0.5}
    lines = [measurement("none", 0, 2.0, stats=own), measurement("ngram", 0, 2.0, stats={"prefill_seconds": None})]
    folder = folder_of(lines)
    found = compare(read_results(folder))
    assert found.all["none"].after_prompt.median == 10 / 1.5
    assert found.all["ngram"].after_prompt is None
    assert "without the prompts" not in shown(found)
    folder = folder_of([lines[0], measurement("ngram", 0, 2.0, stats=own, lossless="measured")], "peers")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["settings"]["methods"][1] |= {"lossless": "measured", "peer": "ngram"}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert "without the prompts" in shown(compare(read_results(folder)))


def test_nothing_measured_is_nothing_to_compare(folder_of):
    with pytest.raises(ValueError, match="nothing is measured in"):
        compare(read_results(folder_of([])))


def test_long_names_of_methods_are_broken_and_figures_are_not(folder_of, measurement):
    name = "draft-model:model=./a/very/long/path/to/some/checkpoint / talon:budget=12,top_k=3,mu=0.05 / match"
    sets = {f"a-set-of-prompts-{number}": 1 for number in range(8)}
    of = [measurement(method, set=each) for each in sets for method in ("none", name)]
    found = compare(read_results(folder_of(of, specs=[name], sets=sets)))
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 120
    assert "…" not in text
    assert "1.00-1.00" in text
    assert "8/8" in shown(found, width=80)


def test_where_outputs_first_differ():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0


def test_an_interval_is_the_same_each_time_and_holds_the_median():
    values = np.random.default_rng(1).lognormal(0.3, 0.2, 63).tolist()
    found = median_with_interval(values)
    assert found == median_with_interval(values)
    assert found.low < found.median < found.high
    assert found.prompts == 63
    assert median_with_interval([1.5] * 7).low == median_with_interval([1.5] * 7).high == 1.5


def test_an_interval_covers_the_true_median_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        found = median_with_interval(rng.lognormal(0.4, 0.3, 40).tolist(), resamples=500)
        covered += found.low <= np.exp(0.4) <= found.high
    assert covered >= 180  # 0.95 of 200 is 190, with a standard deviation of 3; so few resamples cost a little
