"""Comparisons as Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
import re

import pytest
from rich.console import Console

from talon_core.bench.between import side_by_side
from talon_core.bench.compare import compare
from talon_core.bench.forms import FORMS
from talon_core.bench.results import read_results
from talon_core.bench.sheets import Sheet, escaped_latex, escaped_markdown
from talon_core.bench.tables import sheets, tables

METHOD = "ngram/talon:top_k=3,mu=0.1"
ODD = r"100% & #1_{a} ~^\$ <b> *x* [y] `z` | end"


@pytest.fixture
def results(folder_of, measurement):
    """Two runs of two sets."""
    depths = [{"depth": 1, "offered": 8, "accepted": 4, "parent_accepted": 9, "tested": 7}]

    def write(name, its):
        lines = [
            measurement(method, prompt, seconds, set=of, target_passes=passes, acceptance_by_depth=rows)
            for of in ("qa", "s_um")
            for prompt in range(3)
            for method, seconds, passes, rows in (("none", 1.0, 10, []), (METHOD, its + prompt / 10, 4, depths))
        ]
        return read_results(folder_of(lines, name, specs=[METHOD], sets={"qa": 3, "s_um": 3}))

    return [write("old", 0.5), write("new", 0.4)]


def written(form, results):
    return FORMS[form](side_by_side(results), results)


def test_every_line_of_csv_has_every_figure_in_full(results):
    rows = list(csv.DictReader(io.StringIO(written("csv", results))))
    assert [(row["run"], row["set"], row["method"]) for row in rows] == [
        (run, name, method) for run in ("old", "new") for name in ("", "qa", "s_um") for method in ("none", METHOD)
    ]
    summary = side_by_side(results).runs["new"].sets["qa"][METHOD]
    row = next(row for row in rows if (row["run"], row["set"], row["method"]) == ("new", "qa", METHOD))
    assert float(row["ratio"]) == summary.ratio.median
    assert float(row["mat_low"]) == summary.mat.low
    assert int(row["prompts"]) == 3
    assert row["accepted_ratio"] == ""


@pytest.mark.parametrize("number", [1, 2])
def test_markdown_is_tables_in_which_every_row_has_as_many_cells(results, number):
    text = written("markdown", results[:number])
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(blocks) == (5 if number == 1 else 2)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
        assert f"`{METHOD}`" in block
    assert "2.50 (2.50-2.50)" in text
    assert "- warning: " in text.replace("- new: ", "- ").replace("- old: ", "- ")


@pytest.mark.parametrize("number", [1, 2])
def test_latex_has_as_many_cells_in_every_row_and_escapes_names(results, number):
    text = written("latex", results[:number])
    for columns, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert all(len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1 for row in rows)
        assert r"top\_k=3" in body
    assert "2.50 (2.50--2.50)" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == (5 if number == 1 else 2)


def test_json_is_one_object_for_one_run_and_a_list_for_several(results):
    one, two = (json.loads(written("json", results[:number])) for number in (1, 2))
    assert one["folder"].endswith("old")
    assert one["all"][METHOD]["mat"]["low"] == 2.5
    assert one["notes"][0].startswith("warning: 6 prompts only")
    assert [run["run"] for run in two["runs"]] == ["old", "new"]
    assert two["pairs"][1]["method"] == METHOD
    assert two["notes"]


def test_nothing_in_a_cell_is_read_as_markup():
    sheet = Sheet(ODD, ["method", "a | b"], [[ODD, "1-2\n3-4"]], caption=ODD)
    row = sheet.as_markdown().splitlines()[4]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert row.endswith("1-2 (3-4) |")
    assert not re.search(r"(?<!\\)[&%$#_~^](?![a-z])", escaped_latex(ODD).replace(r"\text", ""))
    assert "<b>" not in escaped_markdown(ODD)
    assert "\\*x\\*" in escaped_markdown(ODD)


def by_depth(folder_of, measurement, *counted):
    """The two tables by depth, of a method each with these depths, each with (offered, accepted, tested)."""
    names = [f"ngram/chain:length={number}" for number, _ in enumerate(counted, start=1)]
    lines = [measurement("none", acceptance_by_depth=[])]
    for name, depths in zip(names, counted, strict=True):
        rows = [
            {"depth": depth, "offered": offered, "accepted": accepted, "parent_accepted": 9, "tested": tested}
            for depth, (offered, accepted, tested) in enumerate(depths, start=1)
        ]
        lines.append(measurement(name, acceptance_by_depth=rows))
    found = compare(read_results(folder_of(lines, specs=names, sets={"qa": 1})))
    return [sheet for sheet in sheets(found) if "by depth" in sheet.title]


NO_ROUND = "-: no round had such a node, or the run did not count them"
NO_TREE = "empty: no tree of the method was that deep"


def test_below_a_table_by_depth_it_is_said_what_a_dash_and_an_empty_cell_mean(folder_of, measurement):
    tested, offered = by_depth(folder_of, measurement, [(8, 4, 7), (5, 0, 0)], [(8, 4, 7)])
    assert [row[1:] for row in tested.rows] == [["57%\n4/7", "-"], ["57%\n4/7", ""]]
    assert tested.caption.endswith(f"; {NO_ROUND}; {NO_TREE}")
    assert NO_TREE in offered.caption
    assert NO_ROUND not in offered.caption
    assert NO_TREE in tested.as_markdown()


def test_where_every_cell_of_a_table_by_depth_has_a_figure_no_other_is_explained(folder_of, measurement):
    for sheet in by_depth(folder_of, measurement, [(8, 4, 7)], [(8, 4, 7)]):
        assert NO_ROUND not in sheet.caption
        assert NO_TREE not in sheet.caption


@pytest.mark.parametrize("name", ["", "  ", "\x1b[31m", "a\nb"])
def test_a_terminal_obeys_no_name_of_a_set(folder_of, measurement, name):
    lines = [
        measurement(method, prompt, set=of, token_ids=[prompt, len(method)])
        for of in (name, "qa")
        for prompt in range(2)
        for method in ("none", METHOD)
    ]
    found = read_results(folder_of(lines, specs=[METHOD], sets={name: 2, "qa": 2}))
    console = Console(width=120, markup=False, file=io.StringIO())
    for each in tables(compare(found)):
        console.print(each)
    said = console.file.getvalue()
    assert not [char for char in said if char != "\n" and not char.isprintable()]
    assert "on prompt 0 of" in said
    assert name.encode("unicode_escape").decode() in said
