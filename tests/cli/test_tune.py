"""`talon tune`, on the trace that ships and under a profile that comes with TALON."""

import errno
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from talon_core.plugins.presets import find_preset, known_presets
from talon_core.plugins.registry import load_registry
from talon_core.profiles.profile import Profile, Table
from talon_core.profiles.store import find_profile, save_profile
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import read_trace
from talon_core.tune.schedules import SchedulePlan, scheduled
from talon_core.tune.speeds import Speeds

PROFILE = ("--profile", "h200-llama-3.1-8b", "--other-machine")
SMALL = ("--folds", "2", "--trials", "4", "--search", "budget=2..16:log")


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder of the test's own."""
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "data"
    assert not [*tmp_path.glob("**/tmp*")]  # nothing half-written


@pytest.fixture
def tune(talon: Callable[..., Any]) -> Callable[..., Any]:
    """Runs it."""

    def run(*arguments: str, policy: str = "talon", folders: tuple[str, ...] = (str(SHIPPED),)) -> Any:
        return talon("tune", *folders, policy, *arguments)

    return run


def test_what_is_found_is_kept_and_taken(tune: Any, talon: Any, own_data: Path) -> None:
    ran = tune(*PROFILE, *SMALL, "--save", "mine", "--picture", "seen.svg", "--against", "default", "--json")
    assert ran.status == 0, ran.err
    answer, preset = ran.answer, find_preset("mine")
    assert answer["policy"] == preset.policy
    assert (answer["name"], answer["file"]) == ("mine", str(own_data / "presets" / "mine.json"))
    assert (answer["texts"], answer["missing"], answer["tried"]) == (4, 0, 12)
    assert len(answer["trials"]) == 5
    assert len(answer["folds"]) == 2
    assert {*answer["gains"]} == {"talon", "none", find_preset("default").policy}
    assert Path("seen.svg").read_text().startswith("<?xml")

    assert preset.origin == "tuned"
    assert {name: dict(gain) for name, gain in preset.gains.items()} == {
        name: gain["left_out"] for name, gain in answer["gains"].items()
    }
    assert preset.made["command"].startswith("talon tune ")
    assert preset.made["command"].endswith("--trials 4 --folds 2 --seed 0 --against default --save mine")
    (trace,) = preset.traces
    assert (trace["drafter"], len(trace["fingerprint"])) == ("eagle3", 16)
    assert preset.profile is not None
    assert (preset.profile["name"], preset.profile["origin"]) == ("h200-llama-3.1-8b", "computed")

    replayed = talon("trace", "replay", str(SHIPPED), "mine", preset.policy, "--json").answer["methods"]
    assert [replayed[0][key] for key in ("new_tokens", "target_passes")] == [
        replayed[1][key] for key in ("new_tokens", "target_passes")
    ]
    listed = talon("list", "policies", "--json").answer["presets"]
    assert {one["name"]: one["origin"] for one in listed} == {"default": "tuned", "mine": "tuned"}
    shown = talon("list", "presets").out
    assert "mine  tuned" in shown
    assert re.search(r"times as fast as none \(", " ".join(shown.split()))


def test_schedules_are_simulated_and_the_fastest_is_kept(tune: Any, talon: Any) -> None:
    schedules = ("--schedule", "cached:budget=8", "--schedule", "pearl", "--shared", "1.0")
    ran = tune(*PROFILE, *SMALL, *schedules, "--save", "ahead", "--json")
    assert ran.status == 0, ran.err
    told, preset = ran.answer["schedule"], find_preset("ahead")
    assert preset.schedule == told
    assert {*told["tried"]} == {"cached:budget=8", "pearl"}
    best = max(told["tried"], key=told["tried"].get)
    assert told["schedule"] == (best if told["tried"][best] > 1 else "sync")
    assert f"{best} on thread would be" in told["said"] or "no schedule pays" in told["said"]
    assert preset.made["command"].endswith("--schedule cached:budget=8 --schedule pearl --shared 1 --save ahead")
    simulated = talon("trace", "simulate", str(SHIPPED), preset.policy, *PROFILE, "--schedule", best, "--json")
    (case,) = [one for one in simulated.answer["cases"] if one["schedule"] == best]
    assert case["speedup"] == pytest.approx(told["tried"][best], abs=1e-3)


def test_where_no_schedule_pays_the_preset_has_none_and_says_why(tune: Any) -> None:
    slow = ("--schedule", "pearl", "--shared", "50")
    told = tune(*PROFILE, *SMALL, *slow, "--save", "off", "--json").answer["schedule"]
    assert (told["schedule"], told["draft_on"]) == ("sync", "thread")
    assert told["said"].startswith("no schedule pays: the best, pearl, would be 0.")
    assert "beside a drafter that works a pass takes 50.00 times as long" in told["said"]
    assert find_preset("off").schedule == told
    assert told["said"] in tune(*PROFILE, *SMALL, *slow).out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--shared", "1.5"), "--shared is about schedules, and none is named; name one with --schedule"),
        (("--draft-on", "cpu:1"), "--draft-on is about schedules"),
        (("--drafter-shared", "1.5"), "--drafter-shared is about schedules, and none is named"),
        (("--schedule", "cashed"), "did you mean 'cached'?"),
        (("--schedule", "pearl", "--schedule", "pearl"), "the schedule 'pearl' is given twice"),
        (("--schedule", "pearl", "--shared", "0.5"), "--shared is 0.5; it must be at least 1"),
        (("--schedule", "sync", "--shared", "1"), "--schedule is 'sync', with which every other one is compared"),
        (("--schedule", "pearl", "--shared", "0"), "--shared is 0; it must be at least 1"),
        (("--schedule", "pearl", "--shared", "1", "--transfer", "0.1"), "name its --drafter-profile"),
    ],
)
def test_what_is_no_schedule_to_try_gets_a_sentence(tune: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in tune(*PROFILE, *SMALL, *arguments).refusal


def test_what_schedules_asked_beyond_the_traces_is_told_and_kept(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scheduled(
        [read_trace(SHIPPED)], "chain:length=40", "match", find_profile("h200-llama-3.1-8b"),
        SchedulePlan(("pearl",)), load_registry(),
    )  # fmt: skip
    assert found.outside["sync"] > 0
    assert found.as_dict()["outside"] == found.outside
    monkeypatch.setattr("talon_core.tune.schedules.scheduled", lambda *_: found)
    ran = tune(*PROFILE, *SMALL, "--schedule", "pearl", "--save", "deep", "--json")
    assert ran.answer["schedule"]["outside"] == found.outside
    assert find_preset("deep").schedule == ran.answer["schedule"]
    assert "with these schedules the traces do not answer all that was asked, and figures are estimates: " in ran.err
    assert f"sync ({found.outside['sync']})" in ran.err


def test_the_profile_of_the_drafters_machine_is_of_the_recorded_drafter(
    tune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("talon_core.cli.tune.costs_for", lambda *_: find_profile("h200-llama-3.1-8b"))
    given = ("--profile", "mine", *SMALL, "--schedule", "pearl", "--drafter-profile", "h100-llama-3.1-8b")
    refused = tune(*given).refusal
    assert "the profile 'h100-llama-3.1-8b' is of another machine, model or drafter: its model is" in refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--schedule", "pearl"), "drafts 1 token a round, and nothing below what is verified"),
        (("--schedule", "cached:instant=lookahead"), "as its instant source, and that needs more than the text"),
        (("--schedule", "pearl", "--drafter-profile", "mute.json"), "does not say what the drafter takes; make one"),
        (("--schedule", "pearl", "--drafter-shared", "0.5"), "--drafter-shared is 0.5; it must be at least 1"),
    ],
)
def test_what_cannot_be_simulated_is_refused_before_anything_is_searched(
    tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    def searched(*_: Any) -> None:
        pytest.fail("it was searched")

    monkeypatch.setattr("talon_core.tune.run.tuned", searched)
    trace, made = tmp_path / "trace", find_profile("h200-llama-3.1-8b")
    shutil.copytree(SHIPPED, trace)
    if "1 token" in sentence:
        manifest = json.loads((trace / "manifest.json").read_text())
        manifest["drafter"]["max_depth"] = 1
        (trace / "manifest.json").write_text(json.dumps(manifest))
    mute = attrs.evolve(made, name="mute", draft_table=Table("draft"))
    (tmp_path / "mute.json").write_text(json.dumps(mute.as_dict()))
    assert sentence in tune(*PROFILE, *SMALL, *arguments, folders=(str(trace),)).refusal


def test_on_a_processor_it_must_be_said_what_both_cost_each_other(tune: Any, tmp_path: Path) -> None:
    made = find_profile("h200-llama-3.1-8b")
    here = attrs.evolve(made, name="here", machine={**made.machine, "device": "cpu", "gpu": []})
    save_profile(here)
    said = tune("--profile", "here", "--other-machine", *SMALL, "--schedule", "pearl").refusal
    assert "say with --shared how many times as long a pass takes then (talon profile beside measures it)" in said


def test_people_get_tables_and_the_preset_or_its_file_at_the_end(tune: Any) -> None:
    ran = tune(*PROFILE, *SMALL)
    assert ran.status == 0, ran.err
    assert re.fullmatch(r"talon:budget=\d+,top_k=\d+,mu=[0-9.]+,least=[0-9.e-]+|talon", ran.out.splitlines()[-1])
    assert "left out" in ran.out
    assert tune(*PROFILE, *SMALL, "--save", "kept.json").out.splitlines()[-1] == "kept.json"
    assert find_preset("kept.json").name == "kept"


TUNE = """
import os, sys
from talon_core.cli import main, tune
from talon_core.tune.speeds import Speeds

tune._session = dict  # it takes seconds to find out
before = Speeds._try

def noted(self, one):
    print(os.getpid(), file=sys.stderr)
    return before(self, one)

Speeds._try = noted
status = main(["tune", *sys.argv[1:], "--json"])
assert "torch" not in sys.modules
sys.exit(status)
"""


def test_the_preset_does_not_hang_on_the_number_of_processes(process: Any, own_data: Path) -> None:
    presets, processes = [], []
    for jobs in ("1", "3"):
        arguments = (str(SHIPPED), "chain", *PROFILE, *SMALL[:4], "--save", "mine", "--replace", "--jobs", jobs)
        status, _, err = process(TUNE, *arguments)
        assert status == 0, err
        found = find_preset("mine").as_dict()
        presets.append(found)
        processes.append({line for line in err.splitlines() if line.isdecimal()})
    assert presets[0] == presets[1]
    assert len(processes[0]) == 1 < len(processes[1])


def test_a_preset_of_yours_is_replaced_only_where_that_is_said(
    tune: Any, monkeypatch: pytest.MonkeyPatch, own_data: Path
) -> None:
    file = own_data / "presets" / "mine.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with monkeypatch.context() as patched:
        patched.setattr(Speeds, "try_all", lambda *given: pytest.fail("it was searched"))
        refusal = tune(*PROFILE, *SMALL, "--save", "mine").refusal
    assert refusal.startswith("a preset 'mine' of yours is there already; take another name, or give --replace")
    assert file.read_text() == "{}"
    assert tune(*PROFILE, *SMALL, "--save", "mine", "--replace").status == 0
    assert find_preset("mine").origin == "tuned"


def test_a_second_preset_of_the_same_name_is_refused_while_the_first_is_searched(
    tune: Any, monkeypatch: pytest.MonkeyPatch, own_data: Path
) -> None:
    before, refused = Speeds.try_all, []

    def beside(*given: Any) -> Any:
        if not refused:
            refused.append("")
            with monkeypatch.context() as patched:
                patched.setattr(Speeds, "try_all", lambda *given: pytest.fail("it was searched"))
                refused.append(tune(*PROFILE, *SMALL, "--save", "mine").refusal)
        return before(*given)

    monkeypatch.setattr(Speeds, "try_all", beside)
    assert tune(*PROFILE, *SMALL, "--save", "mine").status == 0
    assert refused[1:] == ["another process is making the preset 'mine'; wait for it, or take another name"]
    assert find_preset("mine").origin == "tuned"


def test_ctrl_c_saves_nothing(tune: Any, monkeypatch: pytest.MonkeyPatch, own_data: Path) -> None:
    before, calls = Speeds.try_all, []

    def interrupted(self: Speeds, wanted: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        before(self, wanted)

    monkeypatch.setattr(Speeds, "try_all", interrupted)
    ran = tune(*PROFILE, *SMALL, "--save", "mine", "--picture", "seen.png", "--json")
    assert (ran.status, ran.answer) == (130, {"error": "interrupted"})
    assert "interrupted; nothing is saved" in ran.err
    assert not own_data.exists()
    assert not Path("seen.png").exists()


def test_a_place_that_this_machine_has_not_is_refused_unless_it_is_for_another_one(tune: Any) -> None:
    schedule = ("--schedule", "pearl", "--shared", "1", "--draft-on", "cpu:4000")
    refusal = tune("--profile", "h100-llama-3.1-8b", *schedule, "--save", "mine", "--json").refusal
    assert refusal.startswith("draft_on is cpu:4000, and this process may use ")
    assert not known_presets().keys() & {"mine"}
    ran = tune(*PROFILE, *SMALL, *schedule, "--json")
    assert "--other-machine" in PROFILE
    assert ran.status == 0, ran.err


def test_no_drafter_of_texts_is_simulated_on_a_gpu_of_its_own(tune: Any) -> None:
    shutil.copytree(SHIPPED, "texts")
    manifest = Path("texts/manifest.json")
    told = json.loads(manifest.read_text())
    told["drafter"] |= {"spec": "ngram", "reads_texts": True}
    manifest.write_text(json.dumps(told))
    schedule = ("--schedule", "cached", "--shared", "1", "--draft-on", "cuda:0")
    refusal = tune(*PROFILE, *SMALL, *schedule, folders=("texts",)).refusal
    assert refusal.startswith("draft_on is cuda:0, and drafter 'ngram' reads nothing but texts, for which it uses no ")


@pytest.mark.parametrize("full", ["talon_core.basics.kept.write_whole", "talon_core.tune.picture.write_whole_bytes"])
def test_a_full_disk_loses_no_search(tune: Any, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(full, refuse)
    ran = tune(*PROFILE, *SMALL, "--save", "mine", "--picture", "seen.svg", "--json")
    assert (ran.status, ran.answer) == (2, {"error": "No space left on device"})
    assert "talon: what was found is talon" in ran.err
    assert not Path("seen.svg").exists()


def test_what_readers_should_know_is_told(tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / "part"
    shutil.copytree(SHIPPED, part)
    (part / "texts" / "000-00003.safetensors").unlink()
    monkeypatch.setattr(Speeds, "own_time", lambda self, spec: 0.2)
    ran = tune(*PROFILE, *SMALL, "--trials", "12", "--search", "top_k=1..30", "--folds", "3", folders=(str(part),))
    assert ran.status == 0, ran.err
    assert "left out, as the traces do not have them yet: 1 text; talon trace record goes on" in ran.err
    assert "the policy itself takes 20 % of the time here" in ran.err


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (1, None),
        (12, "that it is faster than plain decoding is not shown on prompts left out"),
        (20, "it is slower than plain decoding on prompts left out (0.8"),
    ],
)
def test_a_policy_that_is_not_faster_than_plain_decoding_is_told(tune: Any, times: int, told: str | None) -> None:
    here = find_profile("h200-llama-3.1-8b").as_dict()
    draft = [[rows, width, times * seconds] for rows, width, seconds in here["draft"]]
    save_profile(Profile.from_dict({**here, "name": "dear", "draft": draft}))
    ran = tune("--profile", "dear", "--other-machine", *SMALL)
    assert ran.status == 0, ran.err
    assert told in ran.err if told else "plain decoding" not in ran.err


def wrong(part: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest[part][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (wrong("target", "weights_sha256", "ab"), "are of another model each; tune on one of them at a time"),
        (wrong("drafter", "sha256", "ab"), "are of another drafter each"),
        (wrong("settings", "seed", 0), "is given twice; give each one once"),
    ],
)
def test_traces_must_belong_together(tune: Any, tmp_path: Path, change: Any, sentence: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(SHIPPED, other)
    manifest = json.loads((other / "manifest.json").read_text())
    change(manifest)
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert sentence in tune(*PROFILE, *SMALL, folders=(str(SHIPPED), str(other))).refusal


def test_a_profile_must_be_of_the_traces_drafter_and_know_it(tune: Any) -> None:
    here = find_profile("h200-llama-3.1-8b").as_dict()
    save_profile(Profile.from_dict({**here, "name": "other", "drafter": "ngram"}))
    assert "its drafter is ngram and not eagle3" in tune("--profile", "other", *SMALL).refusal
    without = Profile.from_dict({**here, "name": "without", "draft": Table("draft").as_list()})
    save_profile(without)
    refused = tune("--profile", "without", "--other-machine", *SMALL).refusal
    assert "the profile 'without' does not say what the drafter takes" in refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (SMALL, "there is no profile: what a node and a layer cost decides"),
        (("--profile", "h200", *SMALL), "no profile 'h200'; there are: "),
        ((*PROFILE, "--folds", "1"), "--folds is 1; it must be at least 2"),
        ((*PROFILE, "--folds", "5"), "the set 'prompts' has 4 prompts, fewer than 5 folds; give --folds 4"),
        ((*PROFILE, "--trials", "0"), "--trials is 0; it must be at least 1"),
        ((*PROFILE, "--jobs", "0"), "--jobs is 0; it must be at least 1"),
        ((*PROFILE, "--search", "size=2..4"), "tree policy 'talon' has no option 'size'"),
        ((*PROFILE, "--search", "mu=0.1..2"), "'mu' cannot be searched in 0.1..2.0: with 2.0,"),
        ((*PROFILE, "--save", "talon"), "a preset cannot be called 'talon'"),
        ((*PROFILE, "--save", "default"), "the preset 'default' comes with TALON"),
        ((*PROFILE, "--replace"), "--replace is about a name, and none is given; name it with --save"),
        ((*PROFILE, "--replace", "--save", "mine.json"), "--replace is about a name, and none is given"),
        ((*PROFILE, "--save", "nowhere/mine.json"), "it must be a file in a folder that exists"),
        ((*PROFILE, "--save", "here/mine"), "a preset's file is called as the preset is"),
        ((*PROFILE, "--save", "./chain.json"), "a preset cannot be called 'chain'"),
        ((*PROFILE, "--save", "./ngram.json"), "a preset cannot be called 'ngram', as a registered drafter is"),
        ((*PROFILE, "--save", "none.json"), "a preset cannot be called 'none', which means that there is none"),
        ((*PROFILE, "--picture", "seen.pdf"), "it must end in .png or .svg"),
        ((*PROFILE, "--folds", "2", "--against", "tallon"), "no tree policy 'tallon'; did you mean 'talon'?"),
        ((*PROFILE, "--folds", "2", "--rule", "rrs"), "rule 'rrs'"),
    ],
)
def test_what_cannot_be_tuned_gets_a_sentence(
    tune: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr(Speeds, "try_all", lambda *_: pytest.fail("something was tried"))
    assert sentence in tune(*arguments).refusal


@pytest.mark.parametrize(
    ("folders", "policy", "sentence"),
    [
        ((), "talon", "'talon' is all that is given; give a folder of talon trace record and then a policy"),
        ((str(SHIPPED),), "static", "'static' does not say which values of its options may be worth a try"),
        ((str(SHIPPED),), "tallon", "no tree policy 'tallon'; did you mean 'talon'?"),
        ((str(SHIPPED),), "chain:length=2", "there is nothing to search: 'chain' is given length"),
        (
            (str(SHIPPED),),
            "default",
            "tree policy 'talon-cost' does not say which values of its options may be worth a try",
        ),
        ((str(SHIPPED),), "sequoia", "its policy draws from whole laws of the drafter, and the trace has none"),
        (("nowhere",), "talon", "there is no manifest.json in 'nowhere'"),
    ],
)
def test_a_policy_or_a_folder_that_will_not_do_gets_a_sentence(
    tune: Any, folders: tuple[str, ...], policy: str, sentence: str
) -> None:
    assert sentence in tune(*PROFILE, "--folds", "2", folders=folders, policy=policy).refusal


def test_a_trace_is_not_replaced_by_what_is_found_on_it(tune: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    shutil.copytree(SHIPPED, trace)
    manifest = trace / "manifest.json"
    refusal = tune(*PROFILE, *SMALL, "--save", str(manifest), folders=(str(trace),)).refusal
    assert refusal == f"--save is '{manifest}', which is one of the trace's own files; give another one"
    assert manifest.read_bytes() == (SHIPPED / "manifest.json").read_bytes()


def test_a_trace_without_texts_gets_a_sentence(tune: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(SHIPPED / "manifest.json", empty)
    assert "no text of the trace in" in tune(*PROFILE, folders=(str(empty),)).refusal


def test_without_optuna_a_sentence_names_the_extra(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'talon-core[tune]'" in tune(*PROFILE, *SMALL).refusal


def test_a_broken_preset_is_listed_among_what_failed(talon: Any, own_data: Path) -> None:
    (own_data / "presets").mkdir(parents=True)
    (own_data / "presets" / "broken.json").write_text("{")
    answer = talon("list", "presets", "--json").answer
    assert [one["name"] for one in answer["presets"]] == ["default"]
    assert "is no preset of talon tune" in answer["failures"]["preset 'broken'"]
    assert "is no preset of talon tune" in talon("trace", "replay", str(SHIPPED), "broken").refusal


def test_a_process_that_dies_is_told_of_with_its_policy_and_text() -> None:
    from talon_core.trace.processes import dead
    from talon_core.tune.speeds import Text, _Asked

    told = dead(_Asked("talon", 0, (Text(0, "prompts", 3),)))
    assert "a process has died twice at 'talon' on prompt 3 of the set 'prompts'; it may" in told


def test_a_name_that_no_file_can_have_is_refused_before_the_search(talon: Any) -> None:
    given = ("tune", str(SHIPPED), "talon", "--profile", "h100-llama-3.1-8b", "--other-machine")
    for save in ("y" * 300, "y" * 300 + ".json"):
        ran = talon(*given, "--save", save)
        assert ran.status == 2
        assert "trials" not in ran.err


def test_a_policy_that_no_preset_can_have_is_refused_before_the_search(
    tune: Any, monkeypatch: pytest.MonkeyPatch, own_data: Path
) -> None:
    monkeypatch.setattr("talon_core.plugins.presets.LONGEST_POLICY", 3)
    monkeypatch.setattr(Speeds, "try_all", lambda *given: pytest.fail("it was searched"))
    refusal = tune(*PROFILE, *SMALL, "--save", "mine").refusal
    assert "characters, and that of a preset at most 3; give a shorter one, or leave out --save" in refusal
    assert not own_data.exists()


def test_what_was_found_is_told_where_it_cannot_be_a_preset(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> None:
        raise ValueError("'policy' is too long")

    monkeypatch.setattr("talon_core.cli.tune._saved", refused)
    ran = tune(*PROFILE, *SMALL, "--save", "mine")
    assert ran.status == 2
    assert "'policy' is too long" in ran.err
    assert "what was found is talon" in ran.err
