"""The leaderboard's script: what it tries, and what it writes of what came out."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from talon_core.bench.results import open_folder
from talon_core.plugins.registry import load_registry

SCRIPT = Path(__file__).with_name("leaderboard.py")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("leaderboard", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sets(tmp_path):
    """A file of prompts."""
    file = tmp_path / "sets.jsonl"
    file.write_text('"words"\n')
    return file


def run(arguments):
    """What is left of a run that measures nothing."""
    open_folder(Path(arguments[arguments.index("--out") + 1]), SETTINGS, {"cpu": "this one"}, {})
    return {}


def policies(methods):
    return {method.partition("/")[0].partition(":")[0] for method in methods}


def test_every_policy_is_tried_and_what_draws_with_every_rule_that_is_exact_for_its_trees(script):
    registry = load_registry()
    drawing = {name for name, one in registry.entries["tree policy"].items() if one.cls.children != "deterministic"}
    fixed = script.methods_of(registry, laws=False)
    assert fixed[0] == "none"
    assert policies(fixed) - {"none"} == set(registry.entries["tree policy"]) - drawing
    assert not any("/" in method for method in fixed)
    drawn = script.methods_of(registry, laws=True)
    assert policies(drawn) - {"none"} == drawing
    assert {"sequoia/rrsw", "sequoia/traversal", "talon-sampled/hybrid", "sampled-chain:length=2/block"} <= {*drawn}
    assert {*fixed} & {*drawn} == {"none"}
    assert len({*fixed, *drawn}) == len(fixed) + len(drawn) - 1


def test_what_draws_from_a_drafter_of_texts_is_tried_with_match_alone(script):
    registry = load_registry()
    drawn = script.methods_of(registry, laws=True)
    of_texts = script.methods_of(registry, laws=True, reads_texts=True)
    assert of_texts == ["none", *(method for method in drawn if method.endswith("/match"))]


SETTINGS = {
    "temperature": 0.0,
    "methods": [{"name": "none", "lossless": True}],
    "sets": [{"name": "a", "sha256": "0"}],
}
"""Of a run, as far as they are looked at."""

FIGURES = {
    "temperatures": {
        "0": {
            "compared": {
                "none": {"tokens_per_second": 20.0, "to_plain": None, "mean_accepted_tokens": 1.0},
                "generate": {  # a peer tells no passes, and one prompt has no interval
                    "tokens_per_second": 15.0,
                    "to_plain": {"median": 0.75, "low": None, "high": None},
                    "mean_accepted_tokens": None,
                },
                "eagle3/talon": {
                    "tokens_per_second": 25.0,
                    "to_plain": {"median": 1.26, "low": 1.2, "high": 1.31},
                    "mean_accepted_tokens": 2.5,
                },
            },
            "replayed": [
                {
                    "drafter": drafter,
                    "method": method,
                    "laws": False,
                    "mean_accepted_tokens": 2.5,
                    "share": 0.4,
                    "target_passes": 10,
                    "draft_passes": 30,
                    "nodes_verified": 80,
                    "outside": int(method == "talon"),
                    "over_plain": over_plain,
                    "sets": {"one": [2.0, 0.25], "two": [1.0, None]},
                }
                for drafter, method, over_plain in (
                    ("eagle3", "talon", 1.5),
                    ("eagle3", "chain", 1.4),
                    ("ngram", "chain", 0.9),
                )
            ],
        }
    }
}


def test_tables_go_into_a_page_between_its_two_lines_in_the_place_of_what_was_there(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n\n<!-- tables -->\nold\n<!-- end -->\n\nMore words.\n")
    for _ in range(2):
        script.write_page(page, script.tables(FIGURES))
        text = page.read_text()
        assert text.startswith("Words.\n\n<!-- tables -->\n")
        assert text.endswith("\n<!-- end -->\n\nMore words.\n")
        rows = [line for line in text.splitlines() if line.startswith("| `")]
        assert rows == [
            "| `eagle3/talon` | 25.0 | 1.26x | 1.20 to 1.31 | 2.50 |",
            "| `none` | 20.0 |  |  | 1.00 |",
            "| `generate` | 15.0 | 0.75x |  |  |",
            "| `talon` | **1.50x** (2.50*) |  |",
            "| `chain` | 1.40x (2.50) | **0.90x** (2.50) |",
            "| `eagle3` | `talon` | 1.50x | 3.0 | 8.0* | 2.00 (25%) | 1.00 | 2.50 (40%) |",
            "| `eagle3` | `chain` | 1.40x | 3.0 | 8.0 | 2.00 (25%) | 1.00 | 2.50 (40%) |",
            "| `ngram` | `chain` | 0.90x | 3.0 | 8.0 | 2.00 (25%) | 1.00 | 2.50 (40%) |",
        ]
        assert "| policy | `eagle3` | `ngram` |" in text
        assert "old" not in text


def test_a_page_without_a_place_for_them_is_left_alone(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Words.\n<!-- tables -->\n")
    with pytest.raises(ValueError, match="no lines '<!-- tables -->' and '<!-- end -->'"):
        script.write_page(page, "new")
    assert page.read_text() == "Words.\n<!-- tables -->\n"


def test_steps_that_would_leave_nothing_are_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--prompts", ".", "--until", "record"])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "--until is 'record' and --work is not given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--best", "0"), "--best is 0; it must be at least 1"),
        (("--laws-limit", "-1"), "--laws-limit is -1; it must be at least 1"),
        (("--clock-limit", "0"), "--clock-limit is 0; it must be at least 1"),
        (("--drafters",), "--drafters is empty; name at least one"),
        (("--temperatures", "nan"), "--temperatures has nan; "),
        (("--also", "lokahead"), "lokahead"),
        (("--also", "ngram/typical"), "typical"),
        (("--also", "lookahead", "lookahead / talon-cost"), "are the same method"),
        (("--corpus", "{file}", "--work", "a,b"), "--work is 'a,b'; with --corpus it must have no ','"),
        (("--corpus", "{file}", "--work", "a@b"), "--work is 'a@b'; with --corpus it must have no '@'"),
        (("--corpus", "{file}.txt"), "{file}.txt"),
        (("--work", "{file}"), "--work is '{file}', which is a file; it must be a folder"),
        (("--out", "{file}/x.json"), "--out is '{file}/x.json'; it must be a file in a folder that exists"),
        (("--page", "{file}"), "'{file}' has no lines '<!-- tables -->'"),
        (("--page", "{file}.md"), "No such file or directory: '{file}.md'"),
        (("--drafters", "ngram", "hydro"), "no drafter 'hydro'"),
        (("--laws-drafters", "pld:longest=0"), "longest"),
        (("--prompts", "{file}.jsonl"), "'{file}.jsonl'"),
    ],
)
def test_what_the_work_would_end_at_is_refused_before_it(
    script, sets, tmp_path, monkeypatch, capsys, arguments, sentence
):
    file = tmp_path / "file"
    file.write_text("a page")
    monkeypatch.setattr(script, "_talon", lambda *_, **__: pytest.fail("nothing is to be begun"))
    given = [argument.format(file=file) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--prompts", str(sets), *given])
    with pytest.raises(SystemExit) as left:
        script.main()
    assert left.value.code == 2
    assert sentence.format(file=file) in capsys.readouterr().err


@pytest.mark.parametrize("draws", [False, True])
def test_a_policy_that_cannot_be_made_is_refused_before_anything_is_recorded(script, sets, monkeypatch, capsys, draws):
    """As one of a plugin that has an option without a default."""
    own = script.policies_of
    monkeypatch.setattr(script, "_talon", lambda *_, **__: pytest.fail("nothing is to be begun"))
    monkeypatch.setattr(
        script,
        "policies_of",
        lambda registry, **which: ["talon:budget=0"] if which == {"draws": draws} else own(registry, **which),
    )
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--prompts", str(sets)])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    assert "budget" in capsys.readouterr().err


def test_steps_are_done_once_and_the_best_are_decoded_with(script, sets, tmp_path, monkeypatch):
    called = []

    def row(method, name, over):
        oracle = {"share": 0.5}
        passes = {"target_passes": 10, "draft_passes": 3, "nodes_verified": 20, "outside": 0}
        speed = {"mean_accepted_tokens": 1.5, "predicted_tokens_per_second": 20.0 * over}
        return {"method": method, "set": name, "oracle": oracle, **passes, **speed}

    def talon(*arguments, environment=None):
        called.append(arguments)
        if arguments[:2] == ("profile", "measure"):
            (tmp_path / "made.json").write_text("{}")
            return {"file": str(tmp_path / "made.json")}
        if arguments[:2] == ("trace", "sweep"):
            methods = arguments[2 : arguments.index("--trace")]
            speeds = {method: 1.0 + place / 100 for place, method in enumerate(methods)}
            return {
                "rows": [row(*one) for each, over in speeds.items() for one in ((each, None, over), (each, "a", over))]
            }
        if arguments[:2] == ("bench", "run"):
            return run(arguments)
        of_peer = {"tokens_per_second": 9.0, "to_plain": {"median": 0.5, "low": None, "high": None}}
        plain = {"tokens_per_second": 20.0, "to_plain": None, "mean_accepted_tokens": 1.0}
        return {"all": {"none": plain, "generate": {**of_peer, "mean_accepted_tokens": None}}}

    monkeypatch.setattr(script, "_talon", talon)
    work, out = tmp_path / "work", tmp_path / "figures.json"
    command = ["leaderboard.py", "--prompts", str(sets), "--work", str(work), "--drafters", "ngram", "--best", "4"]
    for until, first in (("record", "record"), ("measure", "measure"), ("replay", "sweep")):
        called.clear()
        monkeypatch.setattr(sys, "argv", [*command, "--until", until])
        script.main()
        assert {arguments[1] for arguments in called} == {first}  # steps before it are not done again
        if first == "measure":
            asked = [arguments[arguments.index("--temperature") + 1] for arguments in called]
            assert sorted(asked) == ["0", "1"]
        for arguments in called if first == "sweep" else ():
            trace, profile = (Path(arguments[arguments.index(name) + 1]).name for name in ("--trace", "--profile"))
            assert trace.startswith("trace-1-") is profile.startswith("profile-1-")
    called.clear()
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out), "--limit", "2", "--clock-limit", "3"])
    script.main()
    limits = {one[:2]: one[one.index("--limit") + 1] for one in called if "--limit" in one}
    assert limits["bench", "run"] == "3"
    (greedy, drawn) = (arguments for arguments in called if arguments[:2] == ("bench", "run"))
    fixed, draws = (script.methods_of(load_registry(), laws, reads_texts=True) for laws in (False, True))

    def decoded(arguments):
        return [method for method in arguments[2:] if method.startswith("ngram / ")]

    def named(methods):
        return [f"ngram / {method.replace('/', ' / ')}" for method in reversed(methods)]

    assert decoded(greedy) == named(fixed[-4:])
    assert "lookahead" in greedy  # which no trace can hold
    assert decoded(drawn) == [*named(fixed[-2:]), *named(draws[-2:])]
    boards = json.loads(out.read_text())["temperatures"]
    assert [len(board["replayed"]) for board in boards.values()] == [len(fixed) - 1, len(fixed) + len(draws) - 2]
    assert boards["0"]["replayed"][0]["sets"] == {"a": [1.5, 0.5]}
    assert boards["0"]["environment"] == {"cpu": "this one"}


def test_a_trace_is_gone_on_with_where_prompts_or_the_model_have_changed(script, sets, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(script, "_talon", lambda *arguments, **_: called.append(arguments) or {})
    model = tmp_path / "model"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_text("weights")
    command = ["leaderboard.py", "--prompts", str(sets), "--work", str(tmp_path / "work"), "--model", str(model)]
    monkeypatch.setattr(sys, "argv", [*command, "--drafters", "ngram", "--temperatures", "0", "--until", "record"])
    for times, change in ((1, sets), (1, None), (2, sets), (3, weights)):  # `talon trace record` refuses what differs
        if change is not None:
            change.write_text(f'"words {times}"\n' * times)
        for _ in range(2):
            script.main()
        assert len(called) == times


def test_an_index_of_the_corpus_is_made_once_and_its_drafter_is_tried(script, sets, tmp_path, monkeypatch):
    called = []

    def talon(*arguments, **_):
        called.append(arguments)
        if arguments[:2] == ("datastore", "build"):
            Path(arguments[arguments.index("--out") + 1]).mkdir()
        return {}

    monkeypatch.setattr(script, "_talon", talon)
    folder, work = tmp_path / "corpus", tmp_path / "work"
    folder.mkdir()
    corpus = folder / "corpus.txt"
    corpus.write_text("words")
    command = ["leaderboard.py", "--prompts", str(sets), "--work", str(work), "--drafters", "ngram"]
    monkeypatch.setattr(sys, "argv", [*command, "--until", "record", "--temperatures", "0", "--corpus", str(folder)])
    for more in ("a", "b"):
        script.main()
        (folder / f"{more}.png").touch()  # no text
    corpus.write_text("other words")
    script.main()
    built = [one for one in called if one[:2] == ("datastore", "build")]
    folders = [one[one.index("--out") + 1] for one in built]
    assert [one[2] for one in built] == [str(folder)] * 2
    assert len({*folders}) == 2  # one for each corpus
    recorded = [one[one.index("--drafter") + 1] for one in called if one[:2] == ("trace", "record")]
    assert recorded == ["ngram", *(f"datastore:path={folder}" for folder in folders)]


def test_what_is_among_the_best_is_decoded_with_once(script, sets, tmp_path, monkeypatch):
    called = []

    def talon(*arguments, **_):
        called.append(arguments)
        return run(arguments) if arguments[:2] == ("bench", "run") else {"all": {}}

    monkeypatch.setattr(script, "_talon", talon)
    arguments = ["--prompts", str(sets), "--work", str(tmp_path), "--also", "ngram", "lookahead", "--best", "1"]
    monkeypatch.setattr(script, "_boards", lambda options, _: script._decoded(options, 0.0, rows) and {})
    rows = [{"drafter": "ngram", "method": "talon-cost", "laws": False}]
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", *arguments])
    script.main()
    decoded, _ = called
    assert decoded[2 : decoded.index("--model")] == ("ngram / talon-cost", "lookahead")
