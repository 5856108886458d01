"""The schedule where none is named: what was tuned for this machine and this drafter, and nothing else."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import talon_core
from talon_core import as_generate
from talon_core.cli.options import resolved
from talon_core.defaults import AUTO, DEFAULT_POLICY
from talon_core.errors import LostError
from talon_core.plugins.chosen import chosen_schedule
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.presets import KEPT, Preset, find_preset, save_preset
from talon_core.plugins.registry import Registry, load_registry
from talon_core.plugins.specs import build
from talon_core.runtime.machine import describe_machine
from talon_core.runtime.weights import weights_hash
from talon_strategies import Cached
from talon_tests.tiny_models import of_words

REGISTRY = load_registry()
PAYS = {"schedule": "cached:budget=8", "draft_on": "thread", "said": "it would be 1.30 times as fast", "tried": {}}
NOT = {"schedule": "sync", "draft_on": "thread", "said": "no schedule pays: the best would be slower", "tried": {}}


def kept(
    schedule: Any,
    drafter: str = "ngram",
    name: str = "mine",
    model: Mapping[str, Any] = MappingProxyType({}),
    traces: Sequence[dict[str, Any]] = (),
    **machine: Any,
) -> None:
    """A preset of this machine, but for what is said of it."""
    here = {"cpu": "", **describe_machine(), **machine}
    profile = {"name": "here", "origin": "measured", "drafter": drafter, "model": dict(model), "machine": here}
    save_preset(Preset(name, "chain:length=2", "tuned", {}, [*traces], profile, schedule=schedule), REGISTRY)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's data folder."""
    monkeypatch.setenv("TALON_DATA", str(tmp_path))


def test_a_schedule_that_pays_here_is_taken_with_the_policy_where_none_is_named() -> None:
    kept(PAYS)
    assert find_preset("mine").schedule == PAYS
    made = resolve(Parts("ngram", "mine", schedule=AUTO), REGISTRY)
    assert (made.schedule, made.parts.schedule, made.parts.draft_on) == (Cached(budget=8), "cached:budget=8", "thread")
    assert resolve(Parts("ngram", "mine"), REGISTRY).parts == made.parts
    assert resolve(Parts("ngram", "mine:length=3", schedule=AUTO), REGISTRY).schedule == Cached(budget=8)
    assert resolve(Parts("ngram", "mine", schedule="sync"), REGISTRY).schedule is None
    assert resolve(Parts("ngram", "chain:length=2", schedule=AUTO), REGISTRY).schedule is None
    decoder = talon_core.load(of_words()[0], drafter="ngram", policy="mine", schedule="auto")
    assert any(one.hit is not None for one in decoder.generate([5, 6, 5, 6], max_new_tokens=12).rounds)
    by_default = talon_core.load(of_words()[0], drafter="ngram", policy="mine")
    assert any(one.hit is not None for one in by_default.generate([5, 6, 5, 6], max_new_tokens=12).rounds)
    in_turn = talon_core.load(of_words()[0], drafter="ngram", policy="mine", schedule="sync")
    assert all(one.hit is None for one in in_turn.generate([5, 6, 5, 6], max_new_tokens=12).rounds)


@pytest.mark.parametrize(
    ("schedule", "machine", "why"),
    [
        (NOT, {}, "preset 'mine': no schedule pays: the best would be slower"),
        (None, {}, "preset 'mine' was found without trying schedules; talon tune --schedule"),
        (PAYS, {"threads": 99}, "cached:budget=8 on thread, found on a machine whose threads is 99 and not"),
        (PAYS, {"gpu": ["NVIDIA H200, 570, 1980 MHz"]}, "whose gpu is NVIDIA H200 and not"),
        (PAYS, {"drafter": "eagle3"}, "found with the drafter eagle3"),
    ],
)
def test_anything_else_drafts_and_verifies_in_turn_and_says_why(schedule: Any, machine: Any, why: str) -> None:
    drafter = machine.pop("drafter", "ngram")
    kept(schedule, drafter, **machine)
    found = chosen_schedule("mine", "ngram", REGISTRY)
    assert (found.schedule, found.draft_on) == ("sync", "thread")
    assert why in found.why
    assert resolve(Parts("ngram", "mine", schedule=AUTO), REGISTRY).schedule is None


def test_a_preset_of_an_earlier_version_is_not_taken_for_this_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("talon_core.runtime.machine.processor_name", lambda: "AMD EPYC (family 25, model 17)")
    kept(PAYS)
    assert chosen_schedule("mine", "ngram", REGISTRY).schedule == "cached:budget=8"
    kept(PAYS, cpu="AMD EPYC")
    found = chosen_schedule("mine", "ngram", REGISTRY)
    assert found.schedule == "sync"
    assert found.why == (
        "preset 'mine' has cached:budget=8 on thread, found on a machine whose cpu is AMD EPYC (noted by an earlier "
        "version, which did not tell processors of that name apart) and not AMD EPYC (family 25, model 17); talon tune "
        "--schedule simulates others on this machine"
    )


def test_a_drafter_that_is_chosen_for_the_model_must_be_the_presets() -> None:
    model, _ = of_words()
    kept(PAYS, "ngram")  # which is the one that is ready for this model
    assert resolve(Parts(AUTO, "mine", schedule=AUTO), REGISTRY).for_model(model).schedule == Cached(budget=8)
    kept(PAYS, "eagle3")
    waiting = resolve(Parts(AUTO, "mine", schedule=AUTO), REGISTRY)
    assert waiting.schedule == Cached(budget=8)
    made = waiting.for_model(model)
    assert (made.parts.drafter, made.parts.schedule, made.schedule) == ("ngram", "sync", None)


def loaded(model: Any = None, **how: Any) -> Any:
    """What "auto" makes of the preset on a tiny model."""
    how = {"drafter": "ngram", "policy": "mine", "schedule": "auto", **how}
    return talon_core.load(model if model is not None else of_words()[0], **how)


def goes_ahead(decoder: Any) -> bool:
    return any(one.hit is not None for one in decoder.generate([5, 6, 5, 6], max_new_tokens=12).rounds)


def test_each_part_is_made_once_with_the_schedule_that_auto_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(registry: Registry, kind: str, spec: str) -> Any:
        made.append(kind)
        return build(registry, kind, spec)

    monkeypatch.setattr("talon_core.plugins.parts.build", counted)
    kept(PAYS)
    assert resolve(Parts("ngram", "mine", schedule=AUTO), REGISTRY).schedule == Cached(budget=8)
    assert sorted(made) == ["drafter", "rule", "schedule", "tree policy"]


def test_a_place_that_there_is_not_costs_the_schedule_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    kept({**PAYS, "draft_on": "cpu:4000"})
    assert not goes_ahead(loaded())
    (said,) = warnings_of(caplog)
    assert said.startswith("drafting and verifying take turns: preset 'mine' has cached:budget=8 on cpu:4000, which ")
    assert "draft_on is cpu:4000, and this process may use " in said


def test_what_now_runs_is_compared_with_what_it_was_found_with(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = of_words()
    own, other = weights_hash(model), "0" * 64
    runs = loaded(model, policy="chain", schedule="sync").target
    accelerator = None if runs.accelerator is None else runs.accelerator.name
    fits = {"device": "cpu", "dtype": "float32", "attention": runs.attention.name, "accelerator": accelerator}
    here = {"model": {"name": "a", "weights_sha256": own}, "traces": [{"model": "a", "weights_sha256": own}]}
    unknown = {"model": {"name": "a", "weights_sha256": None}}
    bits = runs.weight_bits
    for found in ({}, fits, here, {**here, **fits}, unknown, {"weight_bits": bits}, {"weight_bits": None}):
        kept(PAYS, **found)
        assert goes_ahead(loaded(model))
    assert not warnings_of(caplog)
    for found, why in (
        ({"device": "cuda:0"}, "found on a machine whose device is cuda and not cpu"),
        ({"dtype": "bfloat16"}, "found on a machine whose dtype is bfloat16 and not float32"),
        ({"weight_bits": 6}, f"found on a machine whose weight_bits is 6 and not {bits}"),
        ({"attention": "odd"}, f"found on a machine whose attention is odd and not {runs.attention.name}"),
        ({"accelerator": "odd"}, "found on a machine whose accelerator is odd and not "),
        ({"model": {"name": "big", "weights_sha256": other}}, "found for a model of other weights, big"),
        ({**here, "traces": [{"model": "big", "weights_sha256": other}]}, "found for a model of other weights, big"),
    ):
        caplog.clear()
        kept(PAYS, **found)
        assert not goes_ahead(loaded(model))
        (said,) = warnings_of(caplog)
        assert said.startswith("drafting and verifying take turns: preset 'mine' has cached:budget=8 on thread, ")
        assert why in said
        assert said.endswith("talon tune --schedule simulates others on this machine")


def test_a_drafter_that_cannot_go_ahead_costs_the_schedule_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """A trace tells of no drafter that it runs layers of the target."""
    kept(PAYS, "draft-model:skip=2")
    assert not goes_ahead(loaded(drafter="draft-model:skip=2"))
    (said,) = warnings_of(caplog)
    assert "which cannot be used: drafter 'draft-model' (" in said
    assert "drafts with the target's own layers, which are busy" in said
    with pytest.raises(ValueError, match="drafts with the target's own layers"):  # what is asked for is never replaced
        loaded(drafter="draft-model:skip=2", schedule="cached:budget=8")


@pytest.mark.parametrize("error", [OSError("no memory for a process"), LostError("its process has ended")])
def test_a_process_that_cannot_be_had_costs_the_schedule_and_nothing_else(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept({**PAYS, "draft_on": "cpu:1"})

    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr("talon_core.decoding.decoder.process_worker", failing)
    model, _ = of_words()
    assert not goes_ahead(talon_core.load(model, drafter="ngram", policy="mine"))
    (said,) = warnings_of(caplog)
    assert f"which cannot be used: {error}" in said
    with pytest.raises(type(error), match=str(error)):
        loaded(model, schedule="cached:budget=8", draft_on="cpu:1")


def test_a_preset_that_cannot_be_read_is_nothing_to_another_policy() -> None:
    kept(PAYS)
    file = KEPT.file_of("mine")
    assert file is not None
    file.write_text("{")
    for policy in ("chain:length=2", DEFAULT_POLICY):
        made = resolve(Parts("ngram", policy), REGISTRY)
        assert (made.parts.schedule, made.schedule, made.parts.draft_on) == ("sync", None, "thread")


def test_what_fails_without_the_schedule_too_is_an_error() -> None:
    kept(PAYS, "draft-model:model=nowhere")
    with pytest.raises(ValueError, match="nowhere"):
        loaded(drafter="draft-model:model=nowhere")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"schedule": "cashed"}, "no schedule 'cashed'; did you mean 'cached'?"),
        ({"schedule": "cached:budget=0"}, "budget"),
        ({"draft_on": "moon"}, "draft_on is 'moon'; it must be thread"),
    ],
)
def test_what_is_registered_no_more_is_not_taken(told: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    kept({**PAYS, **told})
    assert not goes_ahead(loaded())
    (said,) = warnings_of(caplog)
    assert why in said


def test_what_is_taken_is_told_where_somebody_listens_and_nothing_of_what_was_never_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept(PAYS)
    with caplog.at_level(logging.INFO, "talon_core"):
        loaded()
        for policy in ("chain:length=2", DEFAULT_POLICY):
            loaded(policy=policy)
    told = [one.getMessage() for one in caplog.records if one.getMessage().startswith("schedule '")]
    assert told == ["schedule 'cached:budget=8': preset 'mine': it would be 1.30 times as fast"]
    assert not warnings_of(caplog)


def test_model_generate_takes_it_too() -> None:
    kept(PAYS)
    model, _ = of_words()
    generate = as_generate(drafter="ngram", policy="mine", schedule="auto")
    model.generate(torch.tensor([[5, 6, 5, 6]]), max_new_tokens=12, custom_generate=generate)
    assert generate.last is not None
    assert any(one.hit is not None for one in generate.last.rounds)


def test_the_policy_that_ships_has_no_schedule_and_a_policy_of_no_preset_neither() -> None:
    for policy in (DEFAULT_POLICY, "chain", "none", Cached):
        found = chosen_schedule(policy, AUTO, REGISTRY)
        assert (found.schedule, "talon tune --schedule" in found.why) == ("sync", True)


@pytest.mark.parametrize("schedule", ["auto", "sync", None])
def test_what_drafts_nothing_goes_with_every_schedule_that_prepares_nothing(
    schedule: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert resolve(Parts(policy="none", schedule=schedule), REGISTRY).schedule is None
    assert not warnings_of(caplog)


def test_a_place_beside_the_default_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="draft_on is 'cpu:1', and the schedule drafts and verifies in turn"):
        resolve(Parts("ngram", "chain", schedule=AUTO, draft_on="cpu:1"), REGISTRY)


def test_a_place_that_is_asked_for_counts_more_than_the_presets() -> None:
    kept({**PAYS, "draft_on": "cpu:1"})
    for asked, place in (("auto", "cpu:1"), ("thread", "thread"), ("cpu:2", "cpu:2")):
        made = resolve(Parts("ngram", "mine", schedule=AUTO, draft_on=asked), REGISTRY)
        assert made.chosen is not None
        assert (made.parts.schedule, made.parts.draft_on, made.chosen.draft_on) == ("cached:budget=8", place, place)
        assert ("it drafts on" in made.chosen.why) == (asked != "auto")
    assert resolve(Parts("ngram", "mine", schedule="pearl"), REGISTRY).parts.draft_on == "thread"


def test_a_thread_that_is_asked_for_is_taken_where_the_presets_place_is_not_there() -> None:
    kept({**PAYS, "draft_on": "cpu:4000"})
    assert goes_ahead(loaded(draft_on="thread"))


@pytest.mark.parametrize("place", ["cpu:4000", "cuda:4000"])
def test_a_place_that_is_asked_for_and_is_not_there_is_refused_before_a_model_is_looked_for(place: str) -> None:
    kept(PAYS)
    with pytest.raises(ValueError, match=f"^draft_on is {place}, and "):
        loaded("./no-such-model", draft_on=place)
    with pytest.raises(ValueError, match=f"^draft_on is {place}, and "):
        resolved("ngram", "mine", "auto", None, schedule=AUTO, draft_on=place)


def test_a_place_that_is_asked_for_is_refused_with_the_reason_where_nothing_goes_ahead() -> None:
    kept({**PAYS, "draft_on": "cpu:1"}, model={"name": "big", "weights_sha256": "0" * 64})
    with pytest.raises(
        ValueError, match=r"in turn .* cpu:1 was asked for, found for a .* other weights, big.*; name one that"
    ):
        loaded(draft_on="cpu:1")
    kept(NOT)
    with pytest.raises(ValueError, match="no schedule pays: the best would be slower"):
        resolve(Parts("ngram", "mine", schedule=AUTO, draft_on="cpu:1"), REGISTRY)


@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ({"machine": {}, "model": {}}, "'profile' has no 'drafter'"),
        ({"drafter": "ngram", "model": {}}, "'profile' has no 'machine'"),
        ({"drafter": "ngram", "machine": {}}, "'profile' has no 'model'"),
        ({"drafter": "ngram", "machine": [], "model": {}}, "'profile' has a 'machine' that is []; it must be a dict"),
    ],
)
def test_a_profile_that_somebody_has_edited_is_refused_in_a_sentence(profile: Any, sentence: str) -> None:
    kept(PAYS)
    file = KEPT.file_of("mine")
    assert file is not None
    data = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**data, "profile": profile}), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"mine.json' is no preset of talon tune: {sentence}")):
        resolve(Parts("ngram", "mine", schedule=AUTO), REGISTRY)


def test_what_a_preset_says_of_schedules_is_checked() -> None:
    for broken, sentence in (
        ({"schedule": "sync"}, "has no 'draft_on'"),
        ({**PAYS, "said": 5}, "has a 'said' that"),
        ({**PAYS, "tried": []}, "has a 'tried' that"),
    ):
        data = {**Preset("mine", "chain", "tuned").as_dict(), "schedule": broken}
        with pytest.raises(ValueError, match=sentence):
            Preset.from_dict(data)
