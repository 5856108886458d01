"""`talon profile`, with a real model that takes milliseconds."""

import json
from pathlib import Path

import pytest

from talon_core.engine.ahead.place import usable_cores
from talon_core.profiles import measure
from talon_core.profiles.profile import AXES
from talon_core.profiles.store import find_profile, profiles_folder
from talon_drafters import Ngram

SMALL = (
    "--nodes",
    "1,4",
    "--contexts",
    "8,32",
    "--batches",
    "1",
    "--rows",
    "1,2",
    "--widths",
    "2",
    "--repetitions",
    "1",
)


@pytest.fixture
def measured(talon, model, monkeypatch, tmp_path):
    """Measures a profile into a data folder of the test's own."""
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))

    def run(*arguments):
        return talon("profile", "measure", "mine", "--model", model, "--drafter", "ngram", *SMALL, *arguments)

    return run


def test_a_profile_is_measured_saved_and_shown(talon, measured, model):
    ran = measured()
    assert ran.status == 0, ran.err
    assert ran.out.splitlines()[-1].endswith("mine.json") or "mine.json" in ran.out.replace("\n", "")
    found = find_profile("mine")
    assert {nodes for nodes, _, _ in found.verify_table.points} == {1, 4}
    shown = talon("profile", "show", "mine")
    assert shown.status == 0
    assert "verify, in ms" in shown.out
    assert "draft layer, in ms" in shown.out
    assert "mine (measured)" in shown.out
    listed = talon("profile", "list", "--json").answer["profiles"]
    assert {one["name"]: one["origin"] for one in listed}["mine"] == "measured"
    assert sum(one["origin"] == "computed" for one in listed) == 6
    assert "is replaced" not in ran.err


def test_a_profile_of_yours_is_replaced_only_where_that_is_said(talon, measured, monkeypatch):
    assert measured("--replace").status == 0
    before = (profiles_folder() / "mine.json").read_text()
    with monkeypatch.context() as patched:
        patched.setattr(measure.Measuring, "run", lambda *given: pytest.fail("it was measured"))
        refusal = measured().refusal
    assert refusal.startswith("a profile 'mine' of yours is there already; take another name, or give --replace")
    assert (profiles_folder() / "mine.json").read_text() == before
    assert "the profile 'mine' that was there is replaced" in measured("--replace").err
    assert (profiles_folder() / "mine.json").read_text() != before


def test_a_second_profile_of_the_same_name_is_refused_while_the_first_is_made(measured, monkeypatch):
    made = []

    def beside(measuring, name, report):
        with monkeypatch.context() as patched:
            patched.setattr(measure.Measuring, "run", lambda *given: pytest.fail("it was measured"))
            made.extend(measured(*replace).refusal for replace in ((), ("--replace",)))
        return run(measuring, name, report)

    run = measure.Measuring.run
    with monkeypatch.context() as patched:
        patched.setattr(measure.Measuring, "run", beside)
        assert measured().status == 0
    assert made == 2 * ["another process is making the profile 'mine'; wait for it, or take another name"]
    assert measured("--replace").status == 0


def test_json_has_the_points_and_the_errors(talon, measured):
    answer = measured("--json").answer
    assert answer["file"] == str(profiles_folder() / "mine.json")
    saved = json.loads(Path(answer["file"]).read_text())
    assert {name: answer[name] for name in saved} == saved
    assert set(answer["errors"]) == {*AXES}
    assert talon("profile", "show", answer["file"], "--json").answer == {
        name: value for name, value in answer.items() if name != "file"
    }


def test_all_tables_that_have_points_are_shown(talon, measured, tmp_path):
    told = json.loads((Path(measured("--json").answer["file"])).read_text())
    tables = {"accept": "nodes", **dict.fromkeys(("commit", "tell", "read", "catch_up"), "tokens")}
    tables |= {"rest": "rounds", "chain": "layers"}
    file = tmp_path / "whole.json"
    file.write_text(json.dumps({**told, **{kind: [[1, 0.002], [32, 0.004]] for kind in tables}}))
    shown = " ".join(talon("profile", "show", str(file)).out.split())
    for kind, by in tables.items():
        assert f"{kind}, by {by}: 2 ms at 1, 4 ms at 32" in shown
    slow = [[1, 1.98123], [32, 29.3], [64, 1234.5]]
    file.write_text(json.dumps({**told, "read": slow, "verify": [[nodes, 8, 1, 1.98123 * nodes] for nodes in (1, 4)]}))
    shown = " ".join(talon("profile", "show", str(file)).out.split())
    assert "read, by tokens: 1,980 ms at 1, 29,300 ms at 32, 1,230,000 ms at 64" in shown
    assert "1 │ 1,981.23" in shown
    file.write_text(json.dumps({**told, **{kind: [] for kind in tables}}))
    assert not any(f"{kind}, by" in talon("profile", "show", str(file)).out for kind in tables)


def test_ctrl_c_leaves_nothing_and_what_was_there_before(talon, measured, monkeypatch):
    steps = iter(range(6))
    step = measure.Measuring._step

    def interrupted(*given):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step(*given)

    with monkeypatch.context() as patched:
        patched.setattr(measure.Measuring, "_step", interrupted)
        assert measured().status == 130
    assert not profiles_folder().exists() or not list(profiles_folder().iterdir())
    assert measured().status == 0
    before = (profiles_folder() / "mine.json").read_text()
    steps = iter(range(6))
    monkeypatch.setattr(measure.Measuring, "_step", interrupted)
    assert measured("--replace").status == 130
    assert [file.name for file in profiles_folder().iterdir()] == ["mine.json"]
    assert (profiles_folder() / "mine.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("measure", "a/b"), "the name 'a/b' is none; it must be of letters"),
        (("measure", "h200-qwen3-32b"), "the profile 'h200-qwen3-32b' comes with TALON; take another name"),
        (
            ("measure", "h200-qwen3-32b", "--replace"),
            "the profile 'h200-qwen3-32b' comes with TALON; take another name",
        ),
        (("measure", "x", "--repetitions", "0"), "--repetitions is 0; it must be at least 1"),
        (("measure", "x", "--batches", "2,4"), "--batches is 2,4; 1 must be among them"),
        (("measure", "x", "--temperature", "-1"), "--temperature is -1.0; it must be 0 (greedy), or a finite number"),
        (("measure", "x", "--nodes", "1,0"), "'1,0' must be of numbers of at least 1, at most 4096"),
        (("measure", "x", "--nodes", "5000"), "'5000' must be of numbers of at least 1, at most 4096"),
        (("measure", "x", "--rows", "a"), "'a' is not a whole number"),
        (("measure", "x", "--drafter", "egle3"), "no drafter 'egle3'; did you mean 'eagle3'?"),
        (("show", "nothing"), "no profile 'nothing'; there are: a100-llama-3.1-8b"),
        (("show", "nothing.json"), "No such file or directory: 'nothing.json'"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_bad_input_is_a_sentence(talon, arguments, sentence, form):
    assert sentence in talon("profile", *arguments, *form).refusal


def test_a_context_without_room_is_a_sentence(measured):
    assert "do not fit the model's context of 256" in measured("--contexts", "250").refusal
    assert not profiles_folder().exists() or not list(profiles_folder().iterdir())


def test_a_file_of_something_else_is_a_sentence(talon, tmp_path):
    file = tmp_path / "other.json"
    file.write_text('{"kind": "talon trace"}')
    assert "is no profile of talon profile: it must say that its kind is" in talon("profile", "show", str(file)).refusal


def test_generate_takes_a_profile_of_this_machine_and_another_one_only_where_it_is_meant(talon, measured, model):
    assert measured().status == 0
    said = ("generate", "hi-", "--model", model, "--drafter", "ngram", "--raw", "--max-new-tokens", "8", "--json")
    plain = talon(*said).answer["token_ids"]
    assert talon(*said, "--profile", "mine").answer["token_ids"] == plain
    refusal = talon(*said, "--profile", "h100-llama-3.1-8b").refusal
    assert "is of another machine, model or drafter: its cpu is none and not" in refusal
    assert "with other weights" in refusal
    assert "--other-machine" in refusal
    answer = talon(*said, "--profile", "h100-llama-3.1-8b", "--other-machine").answer
    assert answer["token_ids"] == plain


def recorded(talon, model, tmp_path, *more):
    """The folder of a trace of one text."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "one.txt").write_text("hi-")
    folder = str(tmp_path / "trace")
    record = ("trace", "record", "--prompts", str(tmp_path / "one.txt"), "--out", folder, "--model", model)
    assert talon(*record, "--drafter", "ngram", "--raw", "--max-new-tokens", "12", *more).status == 0
    return folder


def environment(folder, *without, **other):
    """Change what a trace says of how it was recorded."""
    manifest = Path(folder) / "manifest.json"
    said = json.loads(manifest.read_text())
    said["environment"] |= other
    for name in without:
        del said["environment"][name]
    manifest.write_text(json.dumps(said))


def test_replay_predicts_with_a_profile(talon, measured, model, tmp_path):
    assert measured().status == 0
    folder = recorded(talon, model, tmp_path)
    replay = ("trace", "replay", folder, "chain:length=2", "none", "--jobs", "1")
    for method in talon(*replay, "--profile", "mine", "--json").answer["methods"]:
        assert method["predicted_tokens_per_second"] == method["new_tokens"] / method["predicted_seconds"] > 0
        assert method["timed_texts"] == 1
    assert "predicted" in talon(*replay, "--profile", "mine").out
    untimed = [talon(*replay, "--profile", "mine", "--untimed", "--json").answer["methods"] for _ in range(2)]
    assert untimed[0] == untimed[1]
    assert [one["policy_seconds"] for one in untimed[0]] == [None, None]
    for option in ("--time-all", "--untimed", "--other-machine"):
        assert f"{option} is given without --profile" in talon(*replay, option).refusal
    assert "give one of them" in talon(*replay, "--profile", "mine", "--time-all", "--untimed").refusal
    assert "predicted" not in talon(*replay).out
    refusal = talon(*replay, "--profile", "a100-qwen3-32b").refusal
    assert "is of another machine, model or drafter" in refusal
    assert "its drafter is eagle3 and not ngram" in refusal
    assert talon(*replay, "--profile", "a100-qwen3-32b", "--other-machine").status == 0
    assert "no profile 'yours'" in talon(*replay, "--profile", "yours").refusal
    environment(folder, weight_bits=4)
    assert "the weights of its model have 32 bits and not 4" in talon(*replay, "--profile", "mine").refusal


@pytest.mark.parametrize(("own", "other"), [("0", "1"), ("1", "0")])
def test_a_profile_of_drawn_texts_is_told_from_one_of_greedy_ones(talon, measured, model, tmp_path, own, other):
    assert measured("--temperature", own).status == 0
    assert f"temperature {own}" in talon("profile", "show", "mine").out
    told = {one["name"]: one["temperature"] for one in talon("profile", "list", "--json").answer["profiles"]}
    assert told["mine"] == float(own)
    said = f"profile 'mine' was measured at temperature {own}, and the trace recorded at {other}"
    for temperature in (own, other):
        folder = recorded(talon, model, tmp_path / temperature, "--temperature", temperature)
        ran = talon("trace", "replay", folder, "none", "--jobs", "1", "--profile", "mine")
        assert ran.status == 0
        assert (said in " ".join(ran.err.split())) is (temperature == other)
        ran = talon("trace", "replay", folder, "none", "--jobs", "1", "--profile", "h200-qwen3-32b", "--other-machine")
        assert "was measured at temperature" not in ran.err  # it was not measured


def test_a_profile_is_compared_with_how_the_trace_was_recorded_too(talon, measured, model, tmp_path):
    assert measured().status == 0
    folder, had = recorded(talon, model, tmp_path), find_profile("mine").machine
    replay = ("trace", "replay", folder, "none", "--jobs", "1", "--profile", "mine")
    for name, other in (("device", "cuda:0"), ("dtype", "bfloat16"), ("attention", "odd"), ("accelerator", "odd")):
        environment(folder, **{name: other})
        said = f"its {name} is {had[name] or 'none'} and not {other}; make one here (talon profile measure), or say"
        assert said in talon(*replay).refusal
        assert talon(*replay, "--other-machine").status == 0
        environment(folder, name)  # a trace that does not tell it
        assert talon(*replay).status == 0
        environment(folder, **{name: had[name]})
    environment(folder, cpu="odd", threads=99)  # a trace of another machine
    assert talon(*replay).status == 0


def test_what_both_cost_each_other_is_said_as_the_simulation_takes_it(talon, model):
    arguments = ("profile", "beside", "--model", model, "--repetitions", "1", "--nodes", "3", "--rows", "2")
    ran = talon(*arguments, "--drafter", "ngram", "--json")
    if usable_cores() < 2:
        assert "one core, on which nothing works at the same time" in ran.refusal
        return
    assert ran.status == 0, ran.err
    assert ran.answer["draft_on"] == "thread"
    assert ran.answer["shared"] >= 1
    assert ran.answer["drafter"] >= 1
    assert f"--shared {ran.answer['shared']:.2f} --drafter-shared {ran.answer['drafter']:.2f}" in ran.answer["said"]
    assert "--drafter-shared" in talon(*arguments, "--drafter", "ngram").out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--drafter", "none"), "--drafter is 'none'; name one"),
        (("--drafter", "n-gram"), "did you mean 'ngram'"),
        (("--repetitions", "0"), "--repetitions is 0; it must be at least 1"),
        (("--nodes", "0"), "--nodes is 0; it must be at least 1 and at most 4096"),
        (("--rows", "5000"), "--rows is 5000; it must be at least 1 and at most 1024"),
        (("--draft-on", "cuda:1"), "a drafter costs the target nothing; name thread, or cpu:1 with a number of cores"),
        (("--draft-on", "moon"), "draft_on is 'moon'; it must be thread"),
        (("--draft-on", "cpu:999", "--model", "no such model"), "draft_on is cpu:999, and this process may use"),
    ],
)
def test_what_cannot_be_timed_beside_each_other_is_a_sentence(talon, arguments, sentence):
    assert sentence in talon("profile", "beside", *arguments, "--json").refusal


@pytest.mark.skipif(usable_cores() < 2, reason="a process beside needs a core of its own")
def test_a_drafter_of_a_process_beside_is_opened_there_alone(talon, model, monkeypatch):
    real, targets = Ngram.open, []
    monkeypatch.setattr(Ngram, "open", lambda self, target: (targets.append(target), real(self, target))[1])
    arguments = ("--model", model, "--repetitions", "1", "--nodes", "3", "--rows", "2", "--drafter", "ngram", "--json")
    for place, opened in (("cpu:1", 0), ("thread", 1)):
        ran = talon("profile", "beside", *arguments, "--draft-on", place)
        assert (ran.status, ran.answer["draft_on"], len(targets)) == (0, place, opened), ran.err


def test_a_drafter_of_the_targets_own_layers_cannot_work_beside_it(talon, model):
    refused = talon("profile", "beside", "--model", model, "--drafter", "draft-model:skip=1", "--json").refusal
    assert "runs layers of the target, which are busy" in refused or "one core" in refused
