"""The oracle's line, where a run's trees are larger than what its trace recorded."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.bench.results import Results
from talon_core.cli import main
from talon_core.report import figures as of
from talon_core.report.efficiency import TooLow, oracle_of
from talon_core.report.figures import ALL, Oracle, Report
from talon_core.report.gather import Besides, report_of
from talon_core.report.page import page_of
from talon_core.report.sections import sections
from talon_core.retrieval import Piece, vocabulary_of, write_index
from talon_core.trace.folder import Trace

PARROT, DRAFTER = "draft-model:skip=1", "draft-model:skip=2"

Decoded = Callable[..., Results]
Traced = Callable[..., Trace]
Model = tuple[Any, Any]


def above(results: Results, oracle: Oracle) -> list[tuple[str, float, float]]:
    """Methods with a point above the line: their tau, and the line's there."""
    report = report_of(results, besides=Besides(oracle=oracle))
    assert report.efficiency is not None
    deltas, taus = zip(*oracle.line, strict=True)
    points = [point for point in report.efficiency.points if point.set == ALL and point.method in oracle.methods]
    assert len(points) == len(oracle.methods) > 0
    found = [(point.method, point.tau, float(np.interp(point.delta, deltas, taus))) for point in points]
    return [(method, tau, line) for method, tau, line in found if tau > line + 1e-9]


def caption(report: Report, name: str) -> str:
    """What stands below a figure."""
    return next(section.caption for section in sections(report) if section.name == name)


def test_a_trace_that_is_not_as_deep_as_the_runs_trees_draws_no_line(
    decoded: Decoded, traced: Traced, repeating: Model
) -> None:
    results = decoded((f"{PARROT}/chain:length=2", f"{PARROT}/chain:length=8"), model=repeating)
    shallow = traced(PARROT, model=repeating, depth=2)
    with pytest.raises(TooLow) as refused:
        oracle_of(shallow, results)
    assert str(refused.value) == (
        f"the trace in '{shallow.folder}' goes 2 deep, and {PARROT}/chain:length=8 drafted 8 deep; record one with "
        "--depth 8, or leave --trace out"
    )
    oracle = oracle_of(traced(PARROT, model=repeating, depth=8), results)
    assert above(results, oracle) == []
    [last] = [point for point in points_of(results) if point.method.endswith("length=8")]
    assert oracle.line[-1] == pytest.approx((last.delta, last.tau))  # it drafts all that is to be had
    assert last.tau > 3


def points_of(results: Results) -> Sequence[of.Point]:
    """Where the methods of a run stand, over all prompts."""
    efficiency = report_of(results).efficiency
    assert efficiency is not None
    return [point for point in efficiency.points if point.set == ALL]


def test_trees_deeper_than_the_trace_are_no_fault_where_the_text_is_nowhere_offered_so_deep(
    decoded: Decoded, traced: Traced
) -> None:
    results = decoded((f"{DRAFTER}/chain:length=8",))
    shallow, deep = (traced(width=1, depth=depth) for depth in (3, 8))
    reaches = [shallow.text(*text).along for text in shallow.texts()]
    assert max(along.reach.max() for along in reaches if along is not None) == 2
    oracle = oracle_of(shallow, results)
    assert oracle.line == oracle_of(deep, results).line
    assert above(results, oracle) == []


def test_a_drafter_of_texts_is_asked_as_deep_as_the_runs_trees_went(
    decoded: Decoded, traced: Traced, repeating: Model
) -> None:
    spec = "ngram/chain:length=8"
    results = decoded((spec,), model=repeating)
    lines = [oracle_of(traced("ngram", model=repeating, depth=depth), results) for depth in (1, 8)]
    assert lines[0] == lines[1]
    assert above(results, lines[0]) == []
    [point] = [point for point in points_of(results) if point.method == spec]
    assert lines[0].line[-1][1] >= point.tau > 3


def test_a_drafter_of_texts_is_not_asked_with_other_files_than_those_of_the_trace(
    decoded: Decoded, traced: Traced, repeating: Model, tmp_path: Path
) -> None:
    folder, vocabulary = tmp_path / "index", vocabulary_of(repeating[1], "repeating")
    write_index(folder, [Piece([5, 6, 7])], vocabulary)
    trace, results = traced(f"datastore:path={folder}", model=repeating), decoded(("ngram/chain",), model=repeating)
    assert oracle_of(trace, results).texts == 4
    shutil.rmtree(folder)
    write_index(folder, [Piece([7, 6, 5])], vocabulary)
    with pytest.raises(ValueError, match=r"the files of 'datastore:.+' are not those .+ now\); record it anew$"):
        oracle_of(trace, results)


def test_a_trace_without_what_was_accepted_draws_no_line(decoded: Decoded, traced: Traced) -> None:
    wide = f"{DRAFTER}/eagle2:budget=12,depth=6,top_k=4"
    results = decoded((wide,))
    narrow = traced(width=1, depth=8)
    with pytest.raises(TooLow) as refused:
        oracle_of(narrow, results)
    said = str(refused.value)
    assert said.startswith(f"the trace in '{narrow.folder}' has the best 1 of each node's candidates, and {wide} ")
    assert said.endswith("record one with a --width above 1, or leave --trace out")
    assert above(results, oracle_of(traced(width=4, depth=8), results)) == []


def test_a_line_that_is_left_out_is_told_on_the_page_and_on_stderr(
    decoded: Decoded, traced: Traced, capsys: pytest.CaptureFixture[str]
) -> None:
    results, shallow = decoded(), traced(depth=1)
    with pytest.raises(TooLow) as refused:
        oracle_of(shallow, results)
    why = str(refused.value)
    report = report_of(results, besides=Besides(no_oracle=why))
    assert report.oracle is None
    assert report.missing[of.ORACLE].endswith(f"would be too low: {why}.")
    assert caption(report, of.EFFICIENCY).endswith(f" The oracle's line is left out, as it would be too low: {why}.")
    assert page_of(report).count("goes 1 deep, and") == 2
    capsys.readouterr()
    assert main(["bench", "report", str(results.folder), "--trace", str(shallow.folder)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{results.folder / 'report.html'}\n"
    assert err.count(f"no figure 'oracle': {report.missing[of.ORACLE]}") == 1
    assert "The oracle&#39;s line is left out" in (results.folder / "report.html").read_text(encoding="utf-8")


def test_the_page_says_whether_marks_may_lie_above_the_line(results: Results, recorded: Trace) -> None:
    def said(changed: Results) -> str:
        return caption(report_of(changed, besides=Besides(oracle=oracle_of(recorded, changed))), of.EFFICIENCY)

    assert said(results).endswith("over all prompts. No filled mark of this drafter lies above it.")
    first = next(one for one in results.measurements if one.method.startswith(DRAFTER))
    drawn = attrs.evolve(first, token_ids=[*first.token_ids[:-1], 0 if first.token_ids[-1] else 1])
    others = [one for one in results.measurements if one is not first]
    assert said(attrs.evolve(results, measurements=[drawn, *others])).endswith("and so may lie above it.")
    assert said(attrs.evolve(results, measurements=[first, *results.measurements])).endswith("so may lie above it.")
