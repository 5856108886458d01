"""The schedule where none is named: what was tuned for this machine and this drafter, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

import talon_core
from talon_core.defaults import AUTO, DEFAULT_POLICY
from talon_core.plugins.chosen import chosen_schedule
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.presets import Preset, find_preset, save_preset
from talon_core.plugins.registry import load_registry
from talon_core.runtime.machine import describe_machine
from talon_strategies import Cached
from talon_tests.tiny_models import of_words

REGISTRY = load_registry()
PAYS = {"schedule": "cached:budget=8", "draft_on": "thread", "said": "it would be 1.30 times as fast", "tried": {}}
NOT = {"schedule": "sync", "draft_on": "thread", "said": "no schedule pays: the best would be slower", "tried": {}}


def kept(schedule: Any, drafter: str = "ngram", name: str = "mine", **machine: Any) -> None:
    """A preset of this machine, but for what is said of it."""
    here = {"cpu": "", **describe_machine(), **machine}
    profile = {"name": "here", "origin": "measured", "drafter": drafter, "model": {}, "machine": here}
    save_preset(Preset(name, "chain:length=2", "tuned", profile=profile, schedule=schedule), REGISTRY)


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's data folder."""
    monkeypatch.setenv("TALON_DATA", str(tmp_path))


def test_a_schedule_that_pays_here_is_taken_with_the_policy_where_auto_asks_for_it() -> None:
    kept(PAYS)
    assert find_preset("mine").schedule == PAYS
    made = resolve(Parts("ngram", "mine", schedule=AUTO), REGISTRY)
    assert (made.schedule, made.parts.schedule, made.parts.draft_on) == (Cached(budget=8), "cached:budget=8", "thread")
    assert resolve(Parts("ngram", "mine:length=3", schedule=AUTO), REGISTRY).schedule == Cached(budget=8)
    assert resolve(Parts("ngram", "mine", schedule="sync"), REGISTRY).schedule is None
    assert resolve(Parts("ngram", "chain:length=2", schedule=AUTO), REGISTRY).schedule is None
    decoder = talon_core.load(of_words()[0], drafter="ngram", policy="mine", schedule="auto")
    assert any(one.hit is not None for one in decoder.generate([5, 6, 5, 6], max_new_tokens=12).rounds)
    in_turn = talon_core.load(of_words()[0], drafter="ngram", policy="mine")
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


def test_a_drafter_that_is_chosen_for_the_model_must_be_the_presets() -> None:
    model, _ = of_words()
    kept(PAYS, "ngram")  # which is the one that is ready for this model
    assert resolve(Parts(AUTO, "mine", schedule=AUTO), REGISTRY).for_model(model).schedule == Cached(budget=8)
    kept(PAYS, "eagle3")
    waiting = resolve(Parts(AUTO, "mine", schedule=AUTO), REGISTRY)
    assert waiting.schedule == Cached(budget=8)
    made = waiting.for_model(model)
    assert (made.parts.drafter, made.parts.schedule, made.schedule) == ("ngram", "sync", None)


def test_a_place_that_there_is_not_costs_the_schedule_and_nothing_else() -> None:
    kept({**PAYS, "draft_on": "cpu:4000"})
    decoder = talon_core.load(of_words()[0], drafter="ngram", policy="mine", schedule="auto")
    assert all(one.hit is None for one in decoder.generate([5, 6, 5, 6], max_new_tokens=12).rounds)


def test_the_policy_that_ships_has_no_schedule_and_a_policy_of_no_preset_neither() -> None:
    for policy in (DEFAULT_POLICY, "chain", "none", Cached):
        found = chosen_schedule(policy, AUTO, REGISTRY)
        assert (found.schedule, "talon tune --schedule" in found.why) == ("sync", True)


def test_a_place_beside_the_default_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="draft_on is 'cpu:1', and the schedule drafts and verifies in turn"):
        resolve(Parts("ngram", "chain", schedule=AUTO, draft_on="cpu:1"), REGISTRY)


def test_what_a_preset_says_of_schedules_is_checked() -> None:
    for broken, sentence in (({"schedule": "sync"}, "has no 'draft_on'"), ({**PAYS, "said": 5}, "has a 'said' that")):
        data = {**Preset("mine", "chain", "tuned").as_dict(), "schedule": broken}
        with pytest.raises(ValueError, match=sentence):
            Preset.from_dict(data)
