"""`talon bench report`, on runs of a real model that takes milliseconds."""

import json
import shlex
from pathlib import Path

import pytest

from talon_core.bench.results import MANIFEST, RESULTS
from talon_core.bench.rounds import ROUNDS
from talon_core.engine.generation import Generation
from talon_core.report.progress import PROMPTS

SENTENCE = "hi-🙂é~\n"
METHODS = ("ngram", "ngram/chain:length=3")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two prompts, the second with something wicked in it."""
    file = tmp_path / "talk.jsonl"
    file.write_text("\n".join(json.dumps({"turns": [text]}) for text in (SENTENCE, "<b>hi-" + SENTENCE)))
    return file


@pytest.fixture
def bench(talon, model, prompts, tmp_path):
    """Runs `talon bench run` into a folder."""

    def run(*arguments: str, folder: str = "out") -> Path:
        out = tmp_path / folder
        where = ("--prompts", str(prompts), "--model", model, "--out", str(out), "--warmup", "0")
        ran = talon("bench", "run", *METHODS, *where, "--max-new-tokens", "12", *arguments)
        assert ran.status in (0, 130), ran.err
        return out

    return run


def interrupted(monkeypatch: pytest.MonkeyPatch, generations: int) -> None:
    """Ctrl-C in the middle of the generation after so many."""
    inner, count = Generation.result, [0]

    def result(self: Generation) -> object:
        count[0] += 1
        if count[0] > generations:
            raise KeyboardInterrupt
        return inner(self)

    monkeypatch.setattr(Generation, "result", result)


@pytest.mark.parametrize("name", [MANIFEST, RESULTS, ROUNDS, ".lock"])
def test_no_file_of_a_run_is_replaced_by_its_report(bench, talon, name):
    out = bench()
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    ran = talon("bench", "report", str(out), "--out", str(out / name))
    assert ran.refusal == f"--out is '{out / name}', which is one of the run's own files; give another one"
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_the_page_is_written_beside_the_results_and_answered_in_json(bench, talon, prompts):
    out = bench("--rounds")
    ran = talon("bench", "report", str(out), "--prompts", str(prompts), "--json")
    assert ran.status == 0, ran.err
    page = (out / "report.html").read_text(encoding="utf-8")
    assert ran.answer["report"] == str(out / "report.html")
    assert ran.answer["bytes"] == len(page.encode())
    assert ran.answer["progress"] == {"done": 2, "planned": 2, "finished": True}
    assert [*ran.answer["missing"]] == ["oracle"]
    assert ran.answer["headline"] in page.replace("&#39;", "'")
    assert "&lt;b&gt;hi-hi-🙂é~" in page
    assert "<b>" not in page
    assert "\\ud83d\\ude42" in page  # what the script steps through is JSON
    again = talon("bench", "report", str(out), "--prompts", str(prompts), "--out", str(out / "again.html"))
    assert again.out == f"{out / 'again.html'}\n"
    assert (out / "again.html").read_text(encoding="utf-8") == page


def test_an_unfinished_run_is_refused_with_the_command_that_goes_on_with_it(bench, talon, prompts, monkeypatch):
    with monkeypatch.context() as patched:
        interrupted(patched, 4)
        out = bench("--temperature", "20", "--seed", "4", "--repetitions", "2", "--rounds")
    said = talon("bench", "report", str(out)).refusal
    assert said.startswith(f"the run in '{out}' has 1 of 4 prompts; go on with it (talon bench run ngram ")
    assert said.endswith("), or report what is there with --unfinished")
    assert not (out / "report.html").exists()
    ran = talon("bench", "report", str(out), "--unfinished", "--json")
    assert ran.answer["progress"] == {"done": 1, "planned": 4, "finished": False}
    assert "This run is not over: 1 of 4 prompts are measured." in ran.answer["notes"][0]
    assert "1 of 4 prompts are measured" in (out / "report.html").read_text(encoding="utf-8")
    command = said[said.index("(") + 1 : said.rindex(")")].replace(PROMPTS, str(prompts))
    assert talon(*shlex.split(command)[1:]).status == 0
    assert talon("bench", "report", str(out), "--json").answer["progress"]["finished"] is True


def test_a_run_without_rounds_says_how_to_make_one_with_them(bench, talon, prompts, tmp_path):
    out = bench()
    ran = talon("bench", "report", str(out), "--json")
    assert ran.status == 0
    assert {"ranks", "shapes", "timeline", "steps"} < {*ran.answer["missing"]}
    why = "The run kept no rounds; this command makes a run that does: talon "
    assert f"no figure 'ranks', 'shapes', 'steps', 'timeline', 'lanes': {why}" in ran.err
    assert ran.err.count(why) == 1
    assert "oracle" not in ran.err  # nobody gave a trace, which is no fault
    sentence = ran.answer["missing"]["steps"]
    command = sentence[sentence.index("talon bench") :].replace(PROMPTS, str(prompts))
    assert talon(*shlex.split(command.replace("FOLDER", str(tmp_path / "new")))[1:]).status == 0
    assert (tmp_path / "new" / ROUNDS).exists()


def test_figures_are_files_of_the_forms_that_are_asked_for(bench, talon, tmp_path):
    out = bench("--rounds")
    figures = tmp_path / "new" / "figures"
    ran = talon("bench", "report", str(out), "--figures", str(figures), "--format", "svg", "--json")
    assert ran.status == 0, ran.err
    assert {*ran.answer["figures"]} == {str(file) for file in figures.iterdir()}
    names = {file.name for file in figures.iterdir()}
    assert names == {
        f"{name}.svg"
        for name in ("speed", "mat", "depths", "ranks", "shapes", "time", "timeline", "lanes", "efficiency")
    }


def test_a_trace_of_the_same_prompts_adds_what_was_to_be_won(bench, talon, model, prompts, tmp_path):
    out, trace = bench("--rounds"), tmp_path / "trace"
    record = ("--model", model, "--drafter", "ngram", "--prompts", str(prompts), "--max-new-tokens", "12")
    assert talon("trace", "record", *record, "--out", str(trace)).status == 0
    ran = talon("bench", "report", str(out), "--trace", str(trace), "--json")
    assert ran.status == 0, ran.err
    assert ran.answer["missing"] == {}
    assert talon("trace", "record", *record[:-1], "8", "--out", str(tmp_path / "short")).status == 0
    said = talon("bench", "report", str(out), "--trace", str(tmp_path / "short")).refusal
    assert "is not of this run: max_new_tokens is 8 there and 12 in the run; record one with the run's model" in said
    assert (
        "give a folder of talon trace record" in talon("bench", "report", str(out), "--trace", str(out / "x")).refusal
    )


def test_a_model_that_is_not_there_any_more_leaves_the_numbers_of_its_tokens(bench, talon):
    out = bench("--rounds")
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["settings"]["model"] = "/nowhere/at/all"
    (out / MANIFEST).write_text(json.dumps(manifest))
    ran = talon("bench", "report", str(out), "--json")
    assert ran.status == 0
    assert "tokens are shown by their numbers, as their texts are not to be had: there is no folder" in ran.err
    assert any(note.startswith("Tokens are shown by their numbers") for note in ran.answer["notes"])


def test_no_model_is_fetched_for_a_report(bench, talon, tmp_path, monkeypatch):
    out = bench("--rounds")
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["settings"]["model"] = "smollm2-135m"
    (out / MANIFEST).write_text(json.dumps(manifest))
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "empty"))
    ran = talon("bench", "report", str(out))
    assert ran.status == 0
    assert "smollm2-135m is not in the cache; fetch it with: talon models fetch smollm2-135m" in ran.err
    assert not (tmp_path / "empty").exists()


def test_what_cannot_be_reported_is_refused_in_a_sentence_and_nothing_is_written(bench, talon, tmp_path):
    def refused(*arguments: str) -> str:
        return str(talon("bench", "report", *arguments).refusal)

    assert "give a folder of talon bench run" in refused(str(tmp_path / "nowhere"))
    out = bench("--rounds")
    assert "no method 'eagle' in" in refused(str(out), "--baseline", "eagle")
    assert "--steps is -1; it must be at least 0" in refused(str(out), "--steps", "-1")
    assert "--format is 'gif'; it must be one of png, svg" in refused(str(out), "--figures", "x", "--format", "gif")
    assert "--format is png and --figures is not given" in refused(str(out), "--format", "png")
    assert "it must be a file in a folder that exists" in refused(str(out), "--out", str(tmp_path))
    assert "which is a file; it must be a folder" in refused(str(out), "--figures", str(out / RESULTS))
    with (out / ROUNDS).open("a") as file:
        file.write("{}\n")
    assert "holds no rounds of this version" in refused(str(out))
    (out / RESULTS).write_text("")
    assert "nothing is measured in" in refused(str(out), "--unfinished")
    manifest = json.loads((out / MANIFEST).read_text())
    del manifest["settings"]["repetitions"]
    (out / MANIFEST).write_text(json.dumps(manifest))
    assert "does not say how many prompts and repetitions are planned" in refused(str(out))
    assert not [*tmp_path.rglob("*.html")]


def changed(out: Path, **fields: object) -> None:
    """Change the first line of a run's results; what is in `stats` beside what is there."""
    first, *others = (out / RESULTS).read_text().splitlines(keepends=True)
    line = json.loads(first)
    line["stats"] |= fields.pop("stats", {})
    (out / RESULTS).write_text("".join([json.dumps(line | fields) + "\n", *others]))


def test_a_token_that_no_vocabulary_has_is_refused_by_its_line(bench, talon):
    out = bench()
    changed(out, token_ids=[1, 2**62])
    refusal = talon("bench", "report", str(out), "--json").refusal
    assert refusal.startswith(f"line 1 of '{out / RESULTS}' is no measurement of this version: ")
    assert f"'token_ids' has {2**62} at 1; it must hold tokens, below {2**31}" in refusal


def test_plain_decoding_that_says_that_it_prepared_something_leaves_a_page(bench, talon):
    out = bench()
    method = json.loads((out / RESULTS).read_text().splitlines()[0])["method"]
    assert method == "none"
    changed(out, stats={"hits": 3})
    assert talon("bench", "report", str(out), "--json").status == 0
