"""The figures of a report, against what the run says in other ways."""

import copy
import itertools
import json
import re
import shutil
import statistics

import attrs
import numpy as np
import pytest

from talon_core.bench.compare import compare
from talon_core.bench.methods import PLAIN
from talon_core.bench.results import MANIFEST, RESULTS, read_results
from talon_core.bench.rounds import ROUNDS, KeptRounds, append_rounds, read_rounds
from talon_core.report import figures as of
from talon_core.report.efficiency import PRICES, Offers, cheapest, oracle_of
from talon_core.report.figures import ALL, FIGURES
from talon_core.report.gather import Besides, report_of
from talon_core.report.page import page_of
from talon_core.report.progress import command_of
from talon_core.report.shapes import MOST_RANKS
from talon_core.report.steps import MOST_NODES, read_questions
from talon_core.report.texts import Texts
from talon_core.rounds import PARTS
from talon_core.rule import MEASURED
from talon_core.trace.along import Along

METHOD = "draft-model:skip=2/talon:budget=8"


def measured(results, method):
    return [each for each in results.measurements if each.method == method]


def test_every_figure_is_there_with_a_trace_and_rounds(report):
    assert report.missing == {}
    assert report.groups == [ALL, "other", "some"]
    assert report.sets == {"other": 1, "some": 3}
    assert [one.place for one in report.methods] == [0, 1, 2, 3, 4]


def test_every_method_that_drafts_is_told_by_its_parts(report, results):
    facts = dict(report.facts)
    assert facts["method ngram/chain:length=3"] == "ngram / chain:length=3 / match"
    assert not {"method none", "method generate"} & {*facts}
    manifest = copy.deepcopy(results.manifest)
    manifest["settings"]["methods"][1] |= {"drafter": "auto", "schedule": "cached:budget=8", "draft_on": "cpu:1"}
    manifest["environment"]["auto"] = "ngram"
    facts = dict(report_of(attrs.evolve(results, manifest=manifest)).facts)
    assert facts[f"method {METHOD}"] == "ngram / talon:budget=8 / match @ cached:budget=8 @ cpu:1"
    del manifest["environment"]["auto"]  # as a run from before it was kept
    facts = dict(report_of(attrs.evolve(results, manifest=manifest)).facts)
    assert facts[f"method {METHOD}"].startswith("auto / talon:budget=8")


def test_speed_and_tokens_per_pass_are_those_of_the_comparison(report, results):
    comparison = compare(results)
    for one in report.speed:
        found = (comparison.all if one.set == ALL else comparison.sets[one.set])[one.method]
        assert one.interval == found.ratio
    assert {one.method for one in report.speed} == {*comparison.methods} - {PLAIN}
    assert {one.method for one in report.mat} == {*comparison.methods} - {PLAIN, "generate"}


def test_ranks_and_depths_count_the_same_rounds(report):
    for method, rows in report.depths.items():
        ranks = report.ranks[method]
        for row in rows[: len(ranks.tested)]:
            tested, accepted = ranks.tested[row.depth - 1], ranks.accepted[row.depth - 1]
            assert tested[0] == row.tested
            assert sum(accepted) == row.accepted or len(tested) == MOST_RANKS
            assert list(tested) == sorted(tested, reverse=True)
        assert sum(row.tested for row in rows[len(ranks.tested) :]) == 0
    assert any(sum(row[1:]) for found in report.ranks.values() for row in found.accepted)


def test_trees_are_counted_once_for_their_set_and_once_for_all(report, results):
    for method in report.ranks:
        own = {shape.set: shape for shape in report.shapes if shape.method == method}
        rounds = sum(each.stats["rounds"] for each in measured(results, method))
        nodes = sum(each.stats["nodes_verified"] for each in measured(results, method))
        assert own[ALL].rounds == rounds == own["some"].rounds + own["other"].rounds
        assert own[ALL].nodes == pytest.approx(nodes / rounds)
        drafted = sum(width * count for counts in own[ALL].widths for width, count in counts.items())
        assert drafted == nodes - rounds  # all nodes but the roots
        for row in report.depths[method]:
            offered = sum(
                each["offered"]
                for one in measured(results, method)
                for each in one.acceptance_by_depth
                if each["depth"] == row.depth
            )
            assert own[ALL].reached(row.depth) == offered / rounds


def test_the_parts_of_the_time_are_all_of_it(report, results):
    assert [one.method for one in report.time] == [PLAIN, *report.ranks]  # generate does not tell
    for one in report.time:
        seconds = sum(each.stats["seconds"] for each in measured(results, one.method))
        tokens = sum(each.stats["new_tokens"] for each in measured(results, one.method))
        assert one.total == pytest.approx(1000 * seconds / tokens)


def test_a_typical_round_is_one_of_the_run_and_medians_are_of_all(report, results):
    kept = [one for one in read_rounds(results.folder) if one.method == METHOD]
    rounds = [each for one in kept for each in one.rounds]
    [found] = [one for one in report.timeline if one.method == METHOD]
    assert found.rounds == len(rounds)
    for part in PARTS:
        assert found.milliseconds[part] == 1000 * statistics.median(getattr(one, f"{part}_seconds") for one in rounds)
    seconds = [sorted(1000 * span.seconds for span in one.spans) for one in rounds]
    assert sorted(one.end - one.start for one in found.typical) in [pytest.approx(each) for each in seconds]
    names = [one.name for one in found.typical if one.part == "draft"]
    last = names[-1] == f"draft layer {len(names)}"  # of a text: nothing is read any more
    reads = [] if last else ["the drafter reads what was accepted"]
    assert names == [*(f"draft layer {number}" for number in range(1, len(names) - len(reads) + 1)), *reads]


def test_points_are_totals_of_passes(report, results):
    of_all = {point.method: point for point in report.efficiency.points if point.set == ALL}
    for method, point in of_all.items():
        stats = [each.stats for each in measured(results, method)]
        passes = sum(each["target_passes"] for each in stats)
        assert point.tau == sum(each["new_tokens"] for each in stats) / passes
        assert point.delta == sum(each["draft_passes"] for each in stats) / passes
    assert "generate" not in of_all
    assert (of_all[PLAIN].delta, of_all[PLAIN].tau) == (0, 1)


def test_methods_that_go_ahead_have_lanes_and_no_place_among_draft_passes(decoded):
    """What they prepare takes passes beside the target's, which nobody counts."""
    spec = "ngram/chain:length=3"
    found = report_of(decoded((spec, f"{spec}@cached:budget=8")))
    timeline = found.lanes[f"{spec}@cached:budget=8"]
    assert any(turn.hit is not None for turn in timeline.turns)
    assert {"prepare", "wait"} <= {*timeline.parts}
    assert {point.method for point in found.efficiency.points} == {PLAIN, spec}
    alone = report_of(decoded((f"{spec}@cached:budget=8",)))
    assert alone.efficiency is None
    assert "while the target verifies" in alone.missing[of.EFFICIENCY]


def test_no_method_with_the_traces_drafter_is_above_the_oracles_line(report):
    deltas, taus = zip(*report.oracle.line, strict=True)
    own = [point for point in report.efficiency.points if point.method in report.oracle.methods and point.set == ALL]
    assert len(own) == 2
    for point in own:
        assert point.tau <= np.interp(point.delta, deltas, taus) + 1e-9
    assert (deltas[0], taus[0]) == (0, 1)
    assert taus[-1] == pytest.approx(max(each.in_hindsight for each in report.oracle.budgets))


def least_cost(ranks, passes, price):
    """The least cost over every way through a text, tried one by one."""

    def ways(position):
        if position == len(ranks):
            yield 0, 0
            return
        for length in range(len(ranks[position]) + 1):
            for target, drafts in ways(position + length + 1):
                yield target + 1, drafts + passes[position][length]

    return min(target + price * drafts for target, drafts in ways(0))


def test_the_oracle_pays_least_at_every_price():
    rng = np.random.default_rng(0)
    for _ in range(20):
        length = 7
        ranks = [(0,) * int(rng.integers(0, min(4, length - at))) for at in range(length)]
        passes = np.cumsum(np.pad(rng.integers(0, 2, (length, 4)), ((0, 0), (1, 0))), axis=1).astype(float)
        found = cheapest(Offers(Along.listed(ranks), passes), np.array(PRICES))
        for price, (target, drafts) in itertools.islice(zip(PRICES, found.T, strict=True), 0, None, 10):
            assert target + price * drafts == pytest.approx(least_cost(ranks, passes, price))


def test_prompts_are_chosen_by_the_leaders_speed(report):
    walks = report.walks
    ratios = [each.ratio for each in walks.prompts]
    assert ratios == sorted(ratios, reverse=True)
    assert [each.fast for each in walks.prompts] == [True, True, False, False]
    best = max(
        (one for one in report.speed if one.set == ALL and one.method in report.ranks),
        key=lambda one: one.interval.median,
    )
    assert walks.by == best.method


def test_steps_tell_the_whole_text_and_its_trees(report, results, tiny):
    for extreme in report.walks.prompts:
        texts = {(each.set, each.prompt): tiny[1].decode(each.token_ids) for each in measured(results, PLAIN)}
        assert [walk.method for walk in extreme.walks] == list(report.ranks)
        assert extreme.text in ("t5 t6 t7", "t8 t9", "t3 t3 t4 t4")
        for walk in extreme.walks:
            text = "".join(piece for step in walk.steps for piece in step.pieces)
            assert text == texts[extreme.set, extreme.prompt]
            assert walk.rounds == len(walk.steps)
            for step in walk.steps:
                assert len(step.pieces) == len(step.path) - 1 + (step.own is not None)
                assert step.parents[0] == -1
                assert all(0 <= parent < node for node, parent in enumerate(step.parents) if node)
                assert all(step.parents[below] == above for above, below in itertools.pairwise(step.path))
                said = [report.walks.words[step.tokens[node]] for node in step.path[1:]]
                assert said == [piece.strip() for piece in step.pieces[: len(said)]]


def test_large_trees_are_shown_in_part_with_all_that_was_accepted(decoded, tiny):
    wide = decoded(("draft-model:skip=2/eagle2:budget=100,depth=4,top_k=30",), max_new_tokens=8)
    found = report_of(wide, besides=Besides(Texts(tiny[1])))
    steps = [step for extreme in found.walks.prompts for walk in extreme.walks for step in walk.steps]
    assert max(step.nodes for step in steps) == 100
    assert max(len(step.parents) for step in steps) <= MOST_NODES + 5


def test_rounds_of_what_is_not_measured_in_full_do_not_count(report, results, tmp_path):
    shutil.copytree(results.folder, tmp_path, dirs_exist_ok=True)
    append_rounds(tmp_path, [KeptRounds("some", 9, 0, 0, METHOD, next(read_rounds(tmp_path)).rounds)])
    found = report_of(attrs.evolve(results, folder=tmp_path))
    assert [shape.rounds for shape in found.shapes] == [shape.rounds for shape in report.shapes]


def test_without_rounds_the_rest_is_there_and_a_command_is_told(results, tmp_path):
    shutil.copytree(results.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / ROUNDS).unlink()
    found = report_of(attrs.evolve(results, folder=tmp_path))
    assert found.depths
    assert found.time
    assert found.efficiency is not None
    assert {*found.missing} == {of.RANKS, of.SHAPES, of.TIMELINE, of.LANES, of.STEPS, of.ORACLE}
    for name in (of.RANKS, of.SHAPES, of.TIMELINE, of.LANES, of.STEPS):
        assert " talon bench run " in found.missing[name]
        assert found.missing[name].endswith("--rounds --out FOLDER")
    assert all(not each.walks for each in found.walks.prompts)


def test_the_command_of_a_run_names_its_peers_as_peers(results):
    settings = copy.deepcopy(results.manifest["settings"])
    settings["methods"] += [{"name": "llama-cpp:draft=ngram-simple", "lossless": "measured", "peer": "llama-cpp"}]
    own = command_of(results.manifest["settings"], "OUT")
    before, prompts, after = own.partition(" --prompts ")
    assert command_of(settings, "OUT") == f"{before} --peer llama-cpp:draft=ngram-simple{prompts}{after}"


def test_a_run_that_drafts_nothing_says_so(decoded):
    found = report_of(decoded((PLAIN,), max_new_tokens=8))
    assert {*FIGURES} - {*found.missing} == {of.TIME, of.TIMELINE, of.LANES}
    assert found.headline.startswith("Plain decoding wrote ")


def test_a_peers_outputs_are_none_of_the_lossless_methods(results):
    manifest = copy.deepcopy(results.manifest)
    (peer,) = [each for each in manifest["settings"]["methods"] if each["name"] == "generate"]
    peer["lossless"] = MEASURED
    changed = [
        attrs.evolve(each, token_ids=[1, *each.token_ids[1:]]) if each.method == "generate" else each
        for each in results.measurements
    ]
    found = report_of(attrs.evolve(results, manifest=manifest, measurements=changed))
    assert found.headline.endswith("All 12 outputs of the lossless methods were the same as plain decoding's.")


def test_a_trace_of_another_run_is_refused(recorded, results):
    settings, environment = results.manifest["settings"], results.manifest["environment"]

    def other(**changes):
        return attrs.evolve(results, manifest={**results.manifest, **changes})

    with pytest.raises(ValueError, match=r"is not of this run: max_new_tokens is 24 there and 12 in the run; record"):
        oracle_of(recorded, other(settings={**settings, "max_new_tokens": 12}))
    with pytest.raises(ValueError, match="the model's weights are others"):
        oracle_of(recorded, other(environment={**environment, "weights_sha256": "0"}))
    sets = [{**each, "sha256": "0"} for each in settings["sets"]]
    with pytest.raises(ValueError, match="has none of the prompts of the run"):
        oracle_of(recorded, other(settings={**settings, "sets": sets}))


def test_other_prompts_than_the_runs_are_refused(results, tmp_path):
    (tmp_path / "some.jsonl").write_text('"t1"')
    with pytest.raises(ValueError, match="has no set 'other'; give the prompts that the run was made with"):
        read_questions(tmp_path, results)
    (tmp_path / "other.jsonl").write_text('"t1"')
    with pytest.raises(ValueError, match=r"the set 'other' in .* is not the one of the run: its sha256 is"):
        read_questions(tmp_path, results)


def test_without_a_tokenizer_tokens_are_numbers(results):
    found = report_of(results)
    assert all(word.isdecimal() for word in found.walks.words)
    assert all(each.answer is None and each.text is None for each in found.walks.prompts)


def test_a_set_that_is_called_as_all_prompts_are_takes_nothing_from_their_figures(results, tmp_path):
    shutil.copytree(results.folder, tmp_path, dirs_exist_ok=True)
    for file in (MANIFEST, RESULTS, ROUNDS):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(re.sub(r'("(?:name|set)": )"some"', r'\1"all prompts"', text))
    found, of_all = report_of(read_results(tmp_path)), report_of(results)
    assert found.groups == [ALL, "other", "all prompts"]
    for figures, expected in (
        (found.speed, of_all.speed),
        (found.mat, of_all.mat),
        (found.shapes, of_all.shapes),
        (found.efficiency.points, of_all.efficiency.points),
    ):
        own = [attrs.evolve(one, set="some") if one.set == "all prompts" else one for one in figures]
        assert own == list(expected)
    assert "all prompts (4)" in page_of(found)
    assert "all prompts (3)" in page_of(found)


@pytest.mark.parametrize(("name", "shown"), [("", "''"), ("  ", "'  '"), ("\x1b[31m", "\x1b[31m"), ("<b>", "<b>")])
def test_a_set_of_any_name_is_reported_and_named_in_the_title(results, tmp_path, name, shown):
    shutil.copytree(results.folder, tmp_path, dirs_exist_ok=True)
    for file in (MANIFEST, RESULTS, ROUNDS):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(re.sub(r'("(?:name|set)": )"some"', lambda at: at[1] + json.dumps(name), text))
    found = report_of(read_results(tmp_path))
    assert found.title == f"tiny on other and {shown}"
    page = page_of(found)
    assert not [each for each in page if each < " " and each not in "\t\n"]
    assert "<b>" not in page
