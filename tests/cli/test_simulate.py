"""`talon trace simulate`: what schedules would take, from a trace and profiles."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from talon_core.profiles.profile import MACHINE, Profile, Table
from talon_core.profiles.store import find_profile
from talon_core.runtime.machine import describe_machine
from talon_core.trace.folder import read_trace
from talon_core.trace.replay import weight_bits_of

SENTENCE = "hi-🙂é~\n"
METHOD = "chain:length=3"


@pytest.fixture
def folder(talon: Callable[..., Any], model: str, tmp_path: Path) -> str:
    """A trace of two short texts."""
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "trace"
    prompts.write_text("\n".join(json.dumps({"turns": [SENTENCE * count]}) for count in (1, 2)), encoding="utf-8")
    where = ("--prompts", str(prompts), "--model", model, "--out", str(out), "--drafter", "draft-model:skip=1")
    ran = talon("trace", "record", *where, "--max-new-tokens", "12", "--nodes", "6", "--depth", "8", "--width", "8")
    assert ran.status == 0, ran.err
    return str(out)


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., str]:
    """Writes a profile: what a pass takes, and a layer of the drafter."""

    def write(name: str, verify: float = 1.0, draft: float | None = 0.25, device: str = "any") -> str:
        tables = {} if draft is None else {"draft_table": Table("draft", {(1, 1): draft, (64, 16): draft})}
        table = Table("verify", {(1, 1, 1): verify, (64, 1, 1): verify})
        machine = {**dict.fromkeys(MACHINE, "any"), "gpu": ["any"], "threads": 1, "device": device}
        model = {"name": "a model", "parameters": 7, "weights_sha256": "0" * 64}
        made = Profile(name, "measured", machine, model, None, {}, table, **tables)
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(made.as_dict()), encoding="utf-8")
        return str(file)

    return write


def test_schedules_are_compared_to_decoding_in_turn(talon: Any, folder: str, profile: Any, tmp_path: Path) -> None:
    picture = tmp_path / "best.html"
    schedules = ("--schedule", "cached:budget=8", "--schedule", "pearl")
    arguments = ("trace", "simulate", folder, METHOD, "none", "--profile", profile("here"), "--other-machine")
    ran = talon(*arguments, *schedules, "--picture", str(picture), "--json")
    assert ran.status == 0, ran.err
    turn, cached, pearl, plain = ran.answer["cases"]
    assert [one["schedule"] for one in ran.answer["cases"]] == ["sync", "cached:budget=8", "pearl", "sync"]
    assert ran.answer["texts"] == 2
    assert turn["stats"]["new_tokens"] == cached["stats"]["new_tokens"] == plain["stats"]["new_tokens"] == 24
    assert (turn["speedup"], turn["hit_rate"], plain["target_waits"]) == (1.0, None, 0.0)
    assert cached["speedup"] == pytest.approx(turn["stats"]["seconds"] / cached["stats"]["seconds"])
    assert cached["hit_rate"] == cached["stats"]["hits"] / (cached["stats"]["hits"] + cached["stats"]["misses"])
    assert turn["stats"]["draft_seconds"] > cached["stats"]["draft_seconds"]
    assert {*pearl["unanswered"]} == {"drafted", "prepared"}
    assert ran.answer["said"].startswith(f"{METHOD} with the schedule ")
    assert "simulated" in picture.read_text(encoding="utf-8")
    shown = talon(*arguments, *schedules)
    assert "tokens/s" in shown.out
    assert shown.out.rstrip().endswith(ran.answer["said"])


def test_the_table_fits_eighty_columns_and_runs_are_counted(
    talon: Any, folder: str, profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    machines = ("--profile", profile("here"), "--drafter-profile", profile("there"), "--other-machine")
    ran = talon("trace", "simulate", folder, METHOD, *machines, "--schedule", "cached:budget=8")
    lines = [line for line in ran.out.splitlines() if line[:1] in "┏┃┡│└"]
    (width,) = {len(line) for line in lines}
    assert width <= 80
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line[0] == "│"]
    named = (f"{METHOD}@sync", f"{METHOD}@sync@there", f"{METHOD}@cached:budget=8@there", "none@sync")
    assert "".join(cell for cell, *_ in cells) == "".join(named)
    assert "…" not in ran.out
    assert "8 of 8 runs" in ran.err  # two texts, each in turn here and there, with the schedule and with plain decoding


def test_a_drafter_on_a_machine_of_its_own_has_costs_of_its_own(talon: Any, folder: str, profile: Any) -> None:
    here, there = profile("here", draft=None), profile("there", verify=9.0, draft=0.125)
    arguments = ("trace", "simulate", folder, METHOD, "--profile", here, "--drafter-profile", there, "--other-machine")
    near, far = (talon(*arguments, "--transfer", transfer, "--json").answer["cases"] for transfer in ("0", "0.5"))
    told = [(one["method"], one["schedule"], one["drafter"]) for one in near]
    assert told == [(METHOD, "sync", "there"), (METHOD, "cached", "there"), ("none", "sync", "here")]
    assert far[0]["stats"]["seconds"] > near[0]["stats"]["seconds"]
    assert near[0]["stats"]["verify_seconds"] == near[0]["stats"]["rounds"]


def test_the_drafters_machine_may_be_another_but_its_profile_is_of_this_drafter_and_model(
    talon: Any, folder: str, profile: Any, tmp_path: Path
) -> None:
    trace, made = read_trace(Path(folder)), find_profile(profile("here"))
    spec, weights, own = trace["drafter"]["spec"], trace["target"]["weights_sha256"], describe_machine()
    other = {**made.machine, "weight_bits": weight_bits_of(trace)}

    def written(name: str, machine: dict[str, Any], drafter: str, of_weights: str) -> str:
        model = {**made.model, "weights_sha256": of_weights}
        said = attrs.evolve(made, name=name, machine=machine, model=model, drafter=drafter).as_dict()
        (tmp_path / f"{name}.json").write_text(json.dumps(said), encoding="utf-8")
        return str(tmp_path / f"{name}.json")

    own = {**trace["environment"], **own}
    here = written("own", {**other, **{name: own[name] for name in MACHINE}}, spec, weights)
    arguments = ("trace", "simulate", folder, METHOD, "--profile", here, "--drafter-profile")
    assert talon(*arguments, written("far", other, spec, weights)).status == 0
    for name, there in (
        ("its drafter is medusa and not", ("medusa", weights)),
        ("with other weights", (spec, "1" * 64)),
    ):
        wrong = written("wrong", other, *there)
        refused = talon(*arguments, wrong, "--json").refusal
        assert "the profile 'wrong' is of another machine, model or drafter: its " in refused
        assert name in refused
        assert "; make one on the drafter's machine (talon profile measure), or say" in refused
        assert talon(*arguments, wrong, "--other-machine").status == 0


def test_a_shared_memory_slows_the_target_down(talon: Any, folder: str, profile: Any) -> None:
    arguments = ("trace", "simulate", folder, METHOD, "--profile", profile("here", draft=0.5), "--other-machine")
    said = talon(*arguments, "--shared", "3", "--json").answer["said"]
    assert said.startswith("No schedule pays: the best, ")
    assert said.endswith("beside a drafter that works it takes 3.00 times as long for a pass.")


def test_on_a_processor_it_is_told_that_nothing_is_shared(talon: Any, folder: str, profile: Any) -> None:
    def told(name: str, *options: str) -> str:
        arguments = ("trace", "simulate", folder, METHOD, "--profile", profile(name, device=name), "--other-machine")
        err: str = talon(*arguments, *options, "--json").err
        return err

    says = "the profile 'cpu' is of a processor, and --shared is 1: figures are as if the drafter took no core"
    assert says in told("cpu")
    assert "--shared" not in told("cpu", "--shared", "1.5")
    assert "--shared" not in told("cuda")


def test_a_drafter_that_the_target_slows_down_is_waited_for(talon: Any, folder: str, profile: Any) -> None:
    arguments = ("trace", "simulate", folder, METHOD, "--profile", profile("here", draft=0.25), "--other-machine")
    quick, slow = (talon(*arguments, "--drafter-shared", factor, "--json").answer["cases"] for factor in ("1", "2.5"))
    assert slow[0]["stats"] == quick[0]["stats"]  # in turn nobody slows anybody down
    assert quick[1]["stats"]["wait_seconds"] == 0  # four calls end with the pass
    assert slow[1]["stats"]["wait_seconds"] > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shared", "0.5"), "--shared is 0.5; it must be at least 1"),
        (("--drafter-shared", "0.5"), "--drafter-shared is 0.5; it must be at least 1"),
        (("--transfer", "-1"), "--transfer is -1; it must be at least 0"),
        (("--transfer", "1"), "--transfer is 1 and --drafter-profile is not given; name the drafter's machine"),
        (("--limit", "0"), "--limit is 0; it must be at least 1"),
        (("--schedule", "cache"), "no schedule 'cache'; did you mean 'cached'?"),
        (("--schedule", "pearl", "--schedule", "pearl"), "the schedule 'pearl' is given twice; give each one once"),
        (("--picture", ""), "--picture is an empty path ('' or '.'); it must be a file in a folder that exists"),
        (("--picture", "best.pdf"), "--picture is 'best.pdf'; it must end in .html, .png or .svg"),
    ],
)
def test_bad_input_is_one_sentence(talon: Any, profile: Any, options: tuple[str, ...], says: str) -> None:
    ran = talon("trace", "simulate", "nowhere", METHOD, "--profile", profile("here"), *options, "--json")
    assert says in ran.refusal


def test_a_profile_without_a_drafter_says_so(talon: Any, folder: str, profile: Any) -> None:
    where = ("--profile", profile("here", draft=None), "--other-machine")
    assert (
        "does not tell what the drafter takes" in talon("trace", "simulate", folder, METHOD, *where, "--json").refusal
    )
