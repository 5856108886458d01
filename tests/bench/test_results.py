"""The folder of a run: going on with it, and refusing what does not fit."""

import json
import os
import re

import pytest

from talon_core.bench.compare import compare
from talon_core.bench.results import MANIFEST, RESULTS, append, read_results


@pytest.fixture
def pair(measurement):
    """The lines of the first prompt."""
    return [measurement("none"), measurement("ngram")]


@pytest.fixture
def following(measurement):
    """The lines of the second prompt."""
    return [measurement("none", 1), measurement("ngram", 1)]


def test_lines_come_back_as_they_were_written(folder_of, measurement):
    lines = [measurement("none", question_id="é\u2028", logit_gap=0.25), measurement("ngram", first_difference=2)]
    results = read_results(folder_of(lines))
    assert results.measurements == lines
    assert results.unfinished == 0


def test_a_line_from_before_there_were_lossy_rules_is_lossless(folder_of, measurement):
    folder = folder_of([measurement("none", lossless=False), measurement("ngram")])
    file = folder / RESULTS
    old = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, "lossless": None}) + "\n" for line in old))
    with pytest.raises(
        ValueError,
        match=r"line 1 .* is no measurement of this version: 'lossless' is None; it must be one",
    ):
        read_results(folder)
    for line in old:
        del line["lossless"]
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert [line.lossless for line in read_results(folder).measurements] == [True, True]


def test_a_folder_from_before_there_were_lossy_rules_can_be_gone_on_with(folder_of, pair, reopened):
    folder = folder_of(pair)
    manifest = json.loads((folder / MANIFEST).read_text())
    for method in manifest["settings"]["methods"]:
        del method["lossless"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    again = reopened(folder)
    assert again.measurements == pair
    assert all(summary.lossless for summary in compare(again).all.values())


@pytest.mark.parametrize("cut", [1, 5, 200])
def test_a_truncated_last_line_is_dropped_with_its_unit_and_the_rest_stays(folder_of, cut, pair, following, reopened):
    folder = folder_of([*pair, *following])
    file = folder / RESULTS
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    assert read_results(folder).measurements == pair
    assert read_results(folder).unfinished == 2
    assert file.read_bytes() == whole[:-cut]  # reading changes nothing
    results = reopened(folder)
    assert results.measurements == pair
    append(folder, following)
    assert file.read_bytes() == whole


def test_a_folder_remembers_each_time_it_was_gone_on_with(folder_of, pair, reopened):
    folder = folder_of(pair)
    reopened(folder)
    assert [session["started"] for session in read_results(folder).manifest["sessions"]] == ["now", "now"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_new_tokens": 64}, "max_new_tokens was 128 and is 64"),
        ({"temperature": 1.0, "seed": 3}, "temperature was 0.0 and is 1.0; seed was 0 and is 3"),
        ({"specs": ["ngram/chain"]}, "methods was [none, ngram] and is [none, ngram/chain]"),
        ({"sets": {"qa": 5}}, "(4 of 4 prompts, sha256 00000000)] and is [qa (5 of 5"),
    ],
)
def test_other_settings_are_refused_and_nothing_changes(folder_of, changes, sentence, pair, reopened):
    folder = folder_of(pair)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(ValueError, match="was made with other settings, give another folder") as caught:
        reopened(folder, **changes)
    assert sentence in str(caught.value)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_another_environment_is_refused(folder_of, pair, reopened):
    folder = folder_of(pair)
    with pytest.raises(ValueError, match="other environment, give another folder: threads was 1 and is 2"):
        reopened(folder, {"threads": 2})


def test_a_run_of_an_earlier_version_is_not_gone_on_with_on_what_may_be_another_processor(folder_of, pair, reopened):
    folder = folder_of(pair)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["environment"]["cpu"] = "AMD EPYC"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    sentence = (
        'give another folder: cpu was "AMD EPYC" (noted by an earlier version, which did not tell processors of that '
        'name apart) and is "AMD EPYC (family 25, model 17)"'
    )
    with pytest.raises(ValueError, match=re.escape(sentence) + "$"):
        reopened(folder, {"cpu": "AMD EPYC (family 25, model 17)"})


def test_a_folder_of_something_else_is_refused(tmp_path, reopened):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"is no folder of talon bench run: it has no manifest\.json"):
        reopened(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(ValueError, match=r"there is no manifest\.json in"):
        read_results(tmp_path / "nowhere")


def test_an_empty_folder_is_taken(tmp_path, reopened):
    reopened(tmp_path)
    assert read_results(tmp_path).measurements == []


def test_what_a_killed_run_has_left_is_taken_away(tmp_path, reopened):
    for _ in range(2):  # before the manifest was there, and then
        (tmp_path / "tmp123.unfinished").write_text("{")
        reopened(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: line.pop("stats"), "line 1 of '{file}' is no measurement of this version"),
        (lambda line: line.update(prompt="x"), "'prompt' is 'x'; it must be a whole number of at least 0"),
        (lambda line: line.update(colour=1), "'colour' is not known"),
        (lambda line: line.update(token_ids=None), "'token_ids' is None; it must be a list of whole numbers"),
        (lambda line: line.update(question_id=[]), "'question_id' is []; it must be a whole number, text or null"),
        (lambda line: line.update(logit_gap="x"), "'logit_gap' is 'x'; it must be a number"),
        (lambda line: line.update(stats=7), "'stats' is 7; it must be a dictionary"),
        (lambda line: line["stats"].update(rounds="x"), "'stats' has a 'rounds' that is 'x'; it must be a number"),
        (lambda line: line["stats"].pop("new_tokens"), "has new_tokens None; it must be a number above 0"),
        (lambda line: line["stats"].update(seconds=0), "has seconds 0; it must be a number above 0"),
        (lambda line: line.update(method="other"), "measures 'other', which is no method of the run"),
        (lambda line: line.update(set="\x1b[31m"), "which is no set of the run; there are: 'qa'"),
        (
            lambda line: line.update(method="ngram"),
            "measures 'ngram' on prompt 0 of the set 'qa', turn 0, repetition 0 again; each line must",
        ),
    ],
)
def test_a_bad_line_is_named(folder_of, change, sentence, pair):
    folder = folder_of(pair)
    file = folder / RESULTS
    first, second = file.read_text().splitlines()
    line = json.loads(first)
    change(line)
    file.write_text(f"{json.dumps(line)}\n{second}\n")
    with pytest.raises(ValueError, match=r"line [12] of") as caught:
        read_results(folder)
    assert sentence.format(file=file) in str(caught.value)


@pytest.mark.parametrize("line", ["null", "7", "[]", '"text"', "true", "[" * 100_000, '{"a":', ""])
def test_a_line_that_is_no_object_is_refused_in_a_sentence(folder_of, line, pair):
    folder = folder_of(pair)
    with (folder / RESULTS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"line 3 of '.*' is no measurement of this version: ") as caught:
        read_results(folder)
    assert "NoneType" not in str(caught.value)
    assert "argument" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        ((), None, "it has format None; this version reads format 1"),
        ((), [], "it has format []; this version reads format 1"),
        (("format",), 99, "it has format 99"),
        (("settings",), None, "'settings' is None; it must be a dictionary"),
        (("environment",), [], "'environment' is []; it must be a dictionary"),
        (("sessions",), [None], "'sessions' has None at 0; it must hold dictionaries"),
        (("settings", "methods"), 7, "'methods' is 7; it must be a list"),
        (("settings", "methods"), [], "'methods' is empty; it must name at least one"),
        (("settings", "methods", 0, "name"), None, "'name' is None; it must be text"),
        (("settings", "methods", 0, "lossless"), 1, "'lossless' is 1; it must be one of true, false, \"claimed\""),
        (("environment",), {"peers": 3}, "'peers' is 3; it must be a dictionary"),
        (
            ("environment",),
            {"peers": {"rival": "fast"}},
            "'peers' has a 'rival' that is 'fast'; it must be a dictionary",
        ),
        (("settings", "sets"), [3], "'sets' has 3 at 0; it must hold dictionaries"),
        (("settings", "temperature"), "hot", "'temperature' is 'hot'; it must be a number"),
    ],
)
def test_a_manifest_with_something_else_in_it_is_refused_in_a_sentence(folder_of, pair, where, value, sentence):
    folder = folder_of(pair)
    data = {"": json.loads((folder / MANIFEST).read_text())}
    inner = data
    for before, step in zip(("", *where), where, strict=False):
        inner = inner[before]
        assert step in inner or isinstance(step, int)
    inner[where[-1] if where else ""] = value
    (folder / MANIFEST).write_text(json.dumps(data[""]))
    with pytest.raises(ValueError, match=r"manifest\.json' is no manifest of talon bench run: ") as caught:
        read_results(folder)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", [MANIFEST, RESULTS])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_not_waited_for(folder_of, pair, name):
    file = folder_of(pair) / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match=rf"'.*{name}'.* is no file"):
        read_results(file.parent)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99, "settings": {"methods": [{"name": "none"}]}}'])
def test_a_manifest_of_another_form_is_refused(folder_of, content, pair):
    folder = folder_of(pair)
    (folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json'"):
        read_results(folder)


def test_a_run_goes_on_where_a_method_was_certified_meanwhile(folder_of, pair, reopened):
    folder = folder_of(pair)
    file = folder / "manifest.json"
    before = json.loads(file.read_text())
    before["settings"]["methods"][1]["lossless"] = "claimed"
    file.write_text(json.dumps(before))
    assert reopened(folder).measurements == pair
