"""`talon bench`, with a real model that takes milliseconds."""

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import torch

from talon_core.bench.measurement import acceptance_by_depth
from talon_core.bench.results import MANIFEST, RESULTS
from talon_core.bench.rounds import ROUNDS, read_rounds
from talon_core.bench.schedule import Unit
from talon_core.decoding.decoder import Decoder
from talon_core.engine.ahead.place import usable_cores
from talon_core.engine.ahead.preparer import Preparer
from talon_core.engine.generation import Generation
from talon_core.engine.sequence import Sequence
from talon_core.engine.stages import Stages
from talon_core.request import Result
from talon_core.rounds import Stats

SENTENCE = "hi-🙂é~\n"
METHODS = ["none", "ngram", "ngram/chain:length=3", "generate"]
COMMON = ("--max-new-tokens", "12", "--warmup", "1")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two sets: three conversations, and one text."""
    folder = tmp_path / "prompts"
    folder.mkdir()
    talks = [{"question_id": 10 + number, "turns": [SENTENCE * (number + 1), "hi"]} for number in range(3)]
    (folder / "talk.jsonl").write_text("\n".join(json.dumps(talk) for talk in talks))
    (folder / "word.txt").write_text(SENTENCE, encoding="utf-8")
    return folder


@pytest.fixture
def bench(talon, model, prompts, tmp_path):
    """Runs `talon bench run` with all methods into a folder, and gives the command's answer and the lines."""

    def run(*arguments: str, folder: str = "out", specs=METHODS):
        out = tmp_path / folder
        where = ("--prompts", str(prompts), "--model", model, "--out", str(out))
        ran = talon("bench", "run", *specs, *where, *COMMON, *arguments)
        file = out / RESULTS
        lines = [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []
        return ran, lines

    return run


def test_every_method_decodes_every_prompt_and_all_say_the_same(bench, tmp_path):
    ran, lines = bench("--json")
    assert ran.status == 0, ran.err
    assert ran.answer == {
        "folder": str(tmp_path / "out"),
        "units": 4,
        "lines": 16,
        "differing": dict.fromkeys(METHODS, 0),
        "lossy": [],
        "peers": [],
        "claimed": [],
    }
    assert [(line["set"], line["prompt"]) for line in lines[::4]] == [
        ("talk", 0),
        ("word", 0),
        ("talk", 1),
        ("talk", 2),
    ]
    assert [line["question_id"] for line in lines[::4]] == [10, None, 11, 12]
    for line in lines:
        assert line["identical"] is True
        assert line["first_difference"] is line["seed"] is None
        assert set(line["stats"]) == {field.name for field in attrs.fields(Stats)}
        assert len(line["token_ids"]) == line["stats"]["new_tokens"] == 12
        assert line["finish_reason"] == "length"
        if line["method"] == "generate":
            known = {name for name, value in line["stats"].items() if value is not None}
            assert known == {"new_tokens", "seconds", "tokens_per_second"}
            assert line["acceptance_by_depth"] is None
        else:
            assert line["stats"]["target_passes"] == line["stats"]["rounds"]
    for start in range(0, 16, 4):
        unit = lines[start : start + 4]
        assert len({json.dumps(line["token_ids"]) for line in unit}) == 1
        assert len({line["prompt_tokens"] for line in unit}) == 1


def test_methods_take_turns_in_beginning(bench):
    _, lines = bench("--repetitions", "2", specs=["ngram", "ngram/chain"])
    names = ["none", "ngram", "ngram/chain"]
    orders = [[line["method"] for line in lines[start : start + 3]] for start in range(0, len(lines), 3)]
    assert orders[:4] == [names, names[1:] + names[:1], names[2:] + names[:2], names]
    assert [line["order"] for line in lines] == [0, 1, 2] * 8
    assert [line["repetition"] for line in lines] == [0] * 12 + [1] * 12


def test_acceptance_is_counted_depth_by_depth(bench):
    _, lines = bench("--limit", "1")
    [plain] = [line for line in lines if line["method"] == "none" and line["set"] == "talk"]
    assert plain["acceptance_by_depth"] == []
    [chain] = [line for line in lines if line["method"] == "ngram/chain:length=3" and line["set"] == "talk"]
    depths = chain["acceptance_by_depth"]
    assert [row["depth"] for row in depths] == [1, 2, 3]
    assert all(0 <= row["accepted"] <= row["offered"] <= chain["stats"]["rounds"] for row in depths)
    # Each round emits what was accepted and a bonus token; nothing was cut at the limit.
    assert sum(row["accepted"] for row in depths) + chain["stats"]["rounds"] == 12


def test_the_manifest_says_what_was_measured_and_where(bench, tmp_path, model):
    bench("--limit", "2")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    settings, environment = manifest["settings"], manifest["environment"]
    assert settings["model"] == model
    assert [method["name"] for method in settings["methods"]] == METHODS
    assert [(each["name"], each["prompts"], each["total"]) for each in settings["sets"]] == [
        ("talk", 2, 3),
        ("word", 1, 1),
    ]
    assert environment["torch"]
    assert environment["transformers"]
    assert environment["cpu"]
    assert (environment["dtype"], environment["architecture"]) == ("float32", "LlamaForCausalLM")
    assert len(environment["weights_sha256"]) == 64
    assert len(manifest["sessions"]) == 1


def test_the_drafter_that_a_method_leaves_open_is_told(bench, tmp_path):
    ran, _ = bench("--limit", "1", specs=["auto/chain:length=3"])
    chosen = json.loads((tmp_path / "out" / MANIFEST).read_text())["environment"]["auto"]
    assert f"talon: 'auto' is the drafter '{chosen}' with this model\n" in ran.err
    ran, _ = bench("--limit", "1", folder="named", specs=["ngram/chain:length=3"])
    assert "'auto'" not in ran.err


AHEAD = "ngram/chain:length=3@cached:budget=8"


def test_a_schedule_is_a_method_of_its_own_that_says_the_same(bench, talon, tmp_path):
    ran, lines = bench("--json", specs=["ngram/chain:length=3", AHEAD])
    assert ran.status == 0, ran.err
    assert ran.answer["differing"] == {"none": 0, "ngram/chain:length=3": 0, AHEAD: 0}
    begun = {line["method"]: line["stats"]["hits"] + line["stats"]["misses"] for line in lines}
    assert begun[AHEAD] > 0 == begun["ngram/chain:length=3"]
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (method,) = [method for method in manifest["settings"]["methods"] if method["name"] == AHEAD]
    assert (method["schedule"], method["draft_on"]) == ("cached:budget=8", "thread")
    told = talon("bench", "compare", str(tmp_path / "out"), "--json").answer["all"]
    assert (told["none"]["hits"], 0 <= told[AHEAD]["hits"] <= 1) == (None, True)
    (row,) = [row for row in talon("bench", "compare", str(tmp_path / "out"), "--format", "csv").out.split("\n")[1:]
              if row.startswith(f"out,,{AHEAD}")]  # fmt: skip
    assert str(told[AHEAD]["hits"]) in row.split(",")
    other = bench("--draft-on", "cpu:1", specs=["ngram/chain:length=3", AHEAD])[0]
    assert "was made with other settings" in other.refusal
    nowhere = bench("--draft-on", "cuda:4000", folder="none", specs=["ngram/chain:length=3", AHEAD])[0]
    assert nowhere.refusal.startswith(f"method '{AHEAD}': draft_on is cuda:4000, and ")


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="a process beside needs a core of its own")
def test_a_method_that_drafts_in_a_process_takes_its_core_from_nobody_else(bench, monkeypatch):
    run, before, threads = Stages.run, torch.get_num_threads(), {True: set(), False: set()}

    def noted(self):
        threads[isinstance(self._parts.drafter, Preparer)].add(torch.get_num_threads())
        return run(self)

    monkeypatch.setattr(Stages, "run", noted)
    torch.set_num_threads(2)
    try:
        ran, lines = bench("--limit", "1", "--draft-on", "cpu:1", specs=["ngram/chain:length=3", AHEAD])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == {True: {1}, False: {2}}
    assert ran.status == 0, ran.err
    assert all(line["identical"] for line in lines)


def test_later_turns_follow_plain_decodings_answers(bench):
    _, lines = bench("--turns", "all", "--limit", "1")
    talk = [line for line in lines if line["set"] == "talk"]
    assert [line["turn"] for line in talk] == [0] * 4 + [1] * 4
    first, second = talk[0], talk[4]
    answer = len(bytes(first["token_ids"]))
    assert second["prompt_tokens"] == first["prompt_tokens"] + 1 + answer + 1 + len("hi")
    assert {line["prompt_tokens"] for line in talk[4:]} == {second["prompt_tokens"]}


def test_drawing_has_one_seed_per_repetition_and_compares_nothing(bench, talon, tmp_path):
    ran, lines = bench("--temperature", "20", "--seed", "4", "--repetitions", "2", "--limit", "1")
    assert ran.status == 0, ran.err
    assert {(line["repetition"], line["seed"]) for line in lines} == {(0, 4), (1, 5)}
    assert {line["identical"] for line in lines} == {None}
    again, same = bench("--temperature", "20", "--seed", "4", "--repetitions", "2", "--limit", "1", folder="again")
    assert again.status == 0
    assert [line["token_ids"] for line in same] == [line["token_ids"] for line in lines]
    assert len({json.dumps(line["token_ids"]) for line in lines if line["method"] == "none" and not line["prompt"]}) > 1
    assert talon("bench", "compare", str(tmp_path / "out")).status == 0


def test_rounds_are_kept_with_their_trees_and_those_of_an_unfinished_unit_are_decoded_again(
    bench, monkeypatch, tmp_path
):
    with monkeypatch.context() as patched:
        interrupt_after(patched, 3 + 3 * 2 + 1)
        assert bench("--rounds")[0].status == 130
    with (tmp_path / "out" / ROUNDS).open("a") as file:  # as if it had been interrupted between the two files
        file.write(json.dumps({"set": "word", "prompt": 9, "turn": 0, "repetition": 0, "method": "none", "rounds": []}))
        file.write('\n{"set": "wo')
    ran, lines = bench("--rounds")
    assert ran.status == 0
    kept = list(read_rounds(tmp_path / "out"))
    by_unit = {(one.unit, one.method): one for one in kept}
    assert len(kept) == len(by_unit) == 4 * 3  # none of transformers' own loop
    for line in lines:
        unit = Unit(line["set"], line["prompt"], line["turn"], line["repetition"])
        found = by_unit.get((unit, line["method"]))
        assert (found is None) == (line["method"] == "generate")
        if found is not None:
            assert [token for one in found.rounds for token in one.tokens.tolist()] == line["token_ids"]
            assert acceptance_by_depth(found.rounds) == line["acceptance_by_depth"]
            assert sum(one.draft_seconds for one in found.rounds) == line["stats"]["draft_seconds"]
    assert "<svg" in by_unit[unit, "ngram"].rounds[-1]._repr_html_()
    ran, _ = bench()
    assert ran.status == 2
    assert "was made with other settings, give another folder: rounds was true and is false" in ran.err
    rounds = tmp_path / "out" / ROUNDS
    rounds.write_bytes(rounds.read_bytes()[:-20])
    ran, _ = bench("--rounds")
    assert ran.status == 2
    assert "' has not the rounds of 1 of 12 measurements; it was changed, so give another folder" in ran.err


def test_without_being_asked_for_no_rounds_are_kept(bench, tmp_path):
    bench("--limit", "1", specs=["ngram"])
    assert not (tmp_path / "out" / ROUNDS).exists()
    with pytest.raises(ValueError, match=r"there is no rounds.jsonl in .*; talon bench run --rounds writes one"):
        next(read_rounds(tmp_path / "out"))


def interrupt_after(monkeypatch: pytest.MonkeyPatch, generations: int) -> None:
    """Ctrl-C in the middle of the generation after so many."""
    inner, count = Generation.result, [0]

    def interrupted(self: Generation) -> object:
        count[0] += 1
        if count[0] > generations:
            raise KeyboardInterrupt
        return inner(self)

    monkeypatch.setattr(Generation, "result", interrupted)


def test_an_interrupted_run_goes_on_where_it_was(bench, monkeypatch, tmp_path):
    def turns(**how):
        return bench("--turns", "all", specs=["none", "ngram/talon:budget=4", *METHODS[2:]], **how)  # by no clock

    _, whole = turns(folder="whole")
    with monkeypatch.context() as patched:
        interrupt_after(patched, 3 + 3 * 3 + 1)  # warmed up, then three units and a part of one, without `generate`
        ran, some = turns()
    assert (ran.status, ran.out) == (130, "")
    assert f"the same command with --out '{tmp_path / 'out'}' goes on from here" in ran.err
    assert "Traceback" not in ran.err
    assert len(some) == 12
    ran, all_ = turns()
    assert ran.status == 0
    assert "12 measurements are there already" in ran.err
    assert all_[:12] == some
    timeless = [[{**line, "stats": None} for line in lines] for lines in (all_, whole)]
    assert timeless[0] == timeless[1]
    assert len(json.loads((tmp_path / "out" / MANIFEST).read_text())["sessions"]) == 2


def test_a_truncated_line_is_measured_again(bench, tmp_path):
    _, whole = bench()
    file = tmp_path / "out" / RESULTS
    file.write_bytes(file.read_bytes()[:-7])
    ran, lines = bench()
    assert ran.status == 0
    assert "12 measurements are there already, and 4 unfinished at the end are left out" in ran.err
    assert lines[:12] == whole[:12]
    assert len(lines) == 16


def test_a_finished_run_measures_nothing_again(bench, monkeypatch):
    _, whole = bench()
    monkeypatch.setattr(Generation, "__next__", lambda _: pytest.fail("something was decoded"))
    ran, lines = bench()
    assert ran.status == 0
    assert lines == whole


def test_other_settings_are_refused_before_the_model_is_loaded(bench, monkeypatch):
    _, whole = bench()
    monkeypatch.setattr("talon_core.cli.session.open_session", lambda _: pytest.fail("a model was loaded"))
    ran, lines = bench("--max-new-tokens", "13")
    assert (ran.status, ran.out) == (2, "")
    assert "was made with other settings, give another folder: max_new_tokens was 12 and is 13" in ran.err
    assert lines == whole


def test_a_second_run_is_kept_out_of_the_folder(bench, tmp_path):
    from filelock import FileLock

    bench()
    with FileLock(tmp_path / "out" / ".lock"):
        ran, _ = bench()
    assert ran.status == 2
    assert "another run is writing into" in ran.err


def test_without_a_folder_the_results_go_to_a_dated_one(talon, model, prompts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = talon("bench", "run", "none", "--prompts", str(prompts / "word.txt"), "--model", model, *COMMON)
    assert ran.status == 0
    [folder] = tmp_path.glob("bench-*-*")
    assert ran.out.splitlines()[-1] == folder.name
    assert folder.name in ran.err


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_written(bench, prompts, tmp_path):
    (prompts / "zoo.txt").write_text("x" * 300)
    ran, _ = bench()
    assert ran.status == 2
    assert "prompt 0 of the set 'zoo' has 300 tokens in turn 0" in ran.err
    assert not (tmp_path / "out").exists()


def test_compare_prints_tables_or_one_object(bench, talon, tmp_path):
    drafting = "ngram/talon:budget=8"
    ran, _ = bench(specs=["none", drafting, *METHODS[2:]])
    assert ran.status == 0
    for word in ("tokens/s", "95 % bootstrap", "MAT by set", "generate", "4/4", "accepted by depth"):
        assert word in ran.out
    compared = talon("bench", "compare", str(tmp_path / "out"))
    assert (compared.status, compared.err) == (0, "")
    assert compared.out == ran.out.rsplit("\n", 2)[0] + "\n"
    file = tmp_path / "compared.json"
    answer = talon("bench", "compare", str(tmp_path / "out"), "--baseline", "generate", "--json", "--out", str(file))
    assert answer.status == 0
    assert answer.answer == json.loads(file.read_text())
    assert answer.answer["baseline"] == "generate"
    assert set(answer.answer["sets"]) == {"talk", "word"}
    assert answer.answer["all"]["generate"]["ratio"]["median"] == 1
    assert answer.answer["all"][drafting]["mean_accepted_tokens"] > 1
    assert answer.answer["all"][drafting]["mat"]["low"] > 1
    assert answer.answer["notes"][0].startswith("warning: 4 prompts only")
    assert "warning: 4 prompts only" in compared.out


def test_compare_writes_other_forms_and_takes_several_runs(bench, talon, tmp_path):
    bench("--limit", "1", folder="one")
    bench("--limit", "2", folder="two")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    file = tmp_path / "table.tex"
    markdown = talon("bench", "compare", one, "--format", "markdown", "--out", str(file))
    assert (markdown.status, markdown.err) == (0, "")
    assert "| `ngram/chain:length=3` |" in markdown.out
    assert file.read_text() == talon("bench", "compare", one, "--format", "latex").out
    assert r"\begin{tabular}" in file.read_text()
    assert talon("bench", "compare", one, two, "--format", "csv").out.count("\n") == 1 + 2 * 3 * 4
    beside = talon("bench", "compare", one, two)
    assert "2 runs side by side; ratios to none of the same run" in beside.out
    assert "the same method to one, prompt by prompt" in beside.out
    answer = talon("bench", "compare", one, two, "--json").answer
    assert {(pair["method"], pair["prompts"]) for pair in answer["pairs"]} == {(name, 2) for name in METHODS}


@pytest.mark.parametrize("name", ["table.pdf", "table", "table.jsonl", ".md"])
def test_a_file_of_another_ending_is_refused_before_anything_is_read(talon, tmp_path, monkeypatch, name):
    monkeypatch.setattr("talon_core.cli.bench.read_results", lambda _: pytest.fail("results were read"))
    ran = talon("bench", "compare", str(tmp_path), "--out", str(tmp_path / name))
    assert (ran.status, ran.out) == (2, "")
    assert "its name must end in .json, .md, .tex, .csv, which says what is written" in ran.err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", [MANIFEST, "there/../manifest.json", "results.md"])
def test_no_file_of_a_run_is_replaced_by_what_is_said_of_it(bench, talon, tmp_path, name):
    bench("--limit", "1")
    folder = tmp_path / "out"
    (folder / "there").mkdir()
    (folder / "results.md").symlink_to(RESULTS)
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    ran = talon("bench", "compare", str(folder), "--out", str(folder / name))
    assert ran.refusal == f"--out is '{folder / name}', which is one of the run's own files; give another one"
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_compare_finds_a_wrong_output_and_says_so_with_its_status(bench, talon, tmp_path):
    bench()
    file = tmp_path / "out" / RESULTS
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    wrong = next(line for line in lines if line["method"] == "ngram" and line["prompt"] == 2)
    wrong["token_ids"][5] += 1
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = talon("bench", "compare", str(tmp_path / "out"))
    assert ran.status == 1
    assert "ngram differs from none on prompt 2 of talk (turn 0, repetition 0) from token 5 on" in ran.out
    ran = talon("bench", "compare", str(tmp_path / "out"), "--json")
    assert (ran.status, ran.answer["all"]["ngram"]["identical"]) == (1, 3)


def test_a_lossy_method_is_marked_everywhere_and_its_differences_are_no_failure(bench, talon, tmp_path):
    name = "ngram/chain/typical"
    ran, lines = bench("--lossy", "--json", specs=["ngram", name])
    assert (ran.status, ran.answer["lossy"]) == (0, [name])
    assert {line["method"]: line["lossless"] for line in lines} == {"none": True, "ngram": True, name: False}
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    methods = {method["name"]: (method["rule"], method["lossless"]) for method in manifest["settings"]["methods"]}
    assert methods == {"none": ("match", True), "ngram": ("match", True), name: ("typical", False)}
    wrong = next(line for line in lines if line["method"] == name)
    wrong["token_ids"][5] += 1
    file = tmp_path / "out" / RESULTS
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    compared = talon("bench", "compare", str(tmp_path / "out"))
    assert compared.status == 0
    assert f"{name} (lossy) differs from none on prompt 0 of talk" in compared.out
    answer = talon("bench", "compare", str(tmp_path / "out"), "--json")
    assert (answer.status, answer.answer["all"][name]["identical"]) == (0, 3)
    assert answer.answer["all"][name]["lossless"] is False
    next(line for line in lines if line["method"] == "ngram")["token_ids"][5] += 1
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert talon("bench", "compare", str(tmp_path / "out")).status == 1


def test_a_claimed_method_is_marked_and_its_differences_are_a_failure(bench, talon, tmp_path, liar):
    name = "ngram/chain/honest"
    ran, lines = bench("--json", specs=[name])
    assert (ran.answer["lossy"], ran.answer["claimed"]) == ([], [name])
    next(line for line in lines if line["method"] == name)["token_ids"][5] += 1
    (tmp_path / "out" / RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    compared = talon("bench", "compare", str(tmp_path / "out"))
    assert compared.status == 1
    assert f"{name} (claimed) differs from none on prompt 0 of talk" in compared.out


def test_a_wrong_output_is_recorded_with_the_gap_of_the_logits(bench, monkeypatch):
    result = Decoder._result

    def wrong(self: Decoder, sequence: Sequence) -> Result:
        found = result(self, sequence)
        if self.policy is not None:
            found.token_ids[3] += 1
        return found

    monkeypatch.setattr(Decoder, "_result", wrong)
    ran, lines = bench("--limit", "1", "--json", specs=["ngram"])
    assert ran.status == 0
    assert ran.answer["differing"] == {"none": 0, "ngram": 2}
    for line in lines:
        differs = line["method"] == "ngram"
        assert line["identical"] is not differs
        assert line["first_difference"] == (3 if differs else None)
        assert (line["logit_gap"] or 0) > 1 if differs else line["logit_gap"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bench", "run"], "SPEC"),
        (["bench", "run", "ngram"], "--prompts"),
        (["bench", "run", "n-gram", "--prompts", "{file}"], "method 'n-gram': no drafter 'n-gram'; did you mean"),
        (
            ["bench", "run", "ngram//typical", "--prompts", "{file}"],
            "method 'ngram//typical': rule 'typical' (talon_strategies.rules.typical.Typical) is lossy",
        ),
        (["bench", "run", "ngram", "--prompts", "nowhere.jsonl"], "the prompt file cannot be read: No such file or"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--limit", "0"], "--limit is 0; it must be at least 1"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--repetitions", "0"], "--repetitions is 0"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--warmup", "-1"], "--warmup is -1; it must be at least 0"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--temperature", "-1"], "--temperature is -1.0"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--max-new-tokens", "x"], "'x' is not a whole number"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--turns", "last"], "--turns is 'last'; it must be first or"),
        (["bench", "run", "ngram", "--prompts", "{file}", "--out", "{folder}"], "is no folder of talon bench run"),
        (["bench", "run", "ngram", "--prompts", "{bad}"], "line 2 of '{bad}' is not JSON"),
        (["bench", "compare"], "FOLDER"),
        (["bench", "compare", "{folder}"], "is no folder of talon bench run: it has no manifest.json"),
        (["bench", "compare", "{folder}/none"], "there is no manifest.json in"),
        (["bench", "compare", "{folder}", "--out", "{folder}/none/file"], "must be a file in a folder that exists"),
        (["bench", "compare", "{folder}", "--format", "word"], "'word'; it must be one of table, markdown, latex, csv"),
        (
            ["bench", "compare", "{folder}", "--format", "csv", "--json"],
            "--format is csv and --json asks for JSON",
        ),
    ],
)
def test_bad_input_gets_a_sentence_before_any_model_is_loaded(talon, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.setattr("talon_core.cli.session.open_session", lambda _: pytest.fail("a model was loaded"))
    paths = {"folder": tmp_path / "things", "file": tmp_path / "one.jsonl", "bad": tmp_path / "bad.jsonl"}
    paths["folder"].mkdir()
    (paths["folder"] / "letter.txt").write_text("dear")
    paths["file"].write_text('"one"\n')
    paths["bad"].write_text('"one"\n{\n')
    ran = talon(*(argument.format(**paths) for argument in arguments))
    assert sentence.format(**paths) in ran.refusal


def test_bench_alone_shows_its_help(talon: Callable[..., object]) -> None:
    ran = talon("bench")
    assert "compare" in ran.out  # type: ignore[attr-defined]
