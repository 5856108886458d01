"""A preset's name stands for a policy with options, wherever a policy is asked for."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import talon_core
from talon_core.basics.kept import ENDING
from talon_core.bench.methods import parse_method as bench_method
from talon_core.defaults import DEFAULT_POLICY
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.presets import (
    KEPT,
    Preset,
    as_text,
    check_preset_name,
    find_preset,
    known_presets,
    save_preset,
    spelled_out,
)
from talon_core.plugins.registry import load_registry
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import read_trace
from talon_core.trace.methods import parse_method as trace_method
from talon_core.tune.space import space_of
from talon_strategies import Talon

REGISTRY = load_registry()
SPEC = "talon:budget=9,mu=0.2"


def made(name: str = "mine", **fields: Any) -> Preset:
    gains = {"none": {"median": 1.5, "low": None, "high": None, "prompts": 1}}
    return Preset(**{"name": name, "policy": SPEC, "origin": "tuned", "gains": gains, **fields})


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder, where `mine` is kept."""
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    save_preset(made(), REGISTRY)
    return tmp_path / "data"


def put(own_data: Path, name: str, text: str) -> None:
    (own_data / "presets" / f"{name}{ENDING}").write_text(text)


def test_a_preset_comes_back_as_it_was(own_data: Path) -> None:
    assert find_preset("mine") == made()
    assert find_preset(str(own_data / "presets" / "mine.json")) == made()
    assert known_presets()["mine"] == own_data / "presets" / "mine.json"


def test_its_name_is_taken_wherever_a_policy_is() -> None:
    wanted = Talon(budget=9, mu=0.2)
    assert talon_core.build("tree policy", "mine") == wanted
    assert resolve(Parts(policy="mine"), REGISTRY).policy == wanted
    method = bench_method("ngram/mine/match", registry=REGISTRY)
    assert method.resolved is not None
    assert method.resolved.policy == wanted
    assert trace_method("mine", read_trace(SHIPPED), REGISTRY).policy == wanted


def test_options_behind_its_name_are_others() -> None:
    assert talon_core.build("tree policy", "mine:mu=0.5,top-k=2") == Talon(budget=9, mu=0.5, top_k=2)
    with pytest.raises(ValueError, match="tree policy 'talon' has no option 'depth'"):
        talon_core.build("tree policy", "mine:depth=2")


def test_what_is_written_down_is_the_policy_and_not_the_name() -> None:
    assert resolve(Parts(policy="mine:mu=0.5"), REGISTRY).parts.policy == "talon:budget=9,mu=0.5"
    assert bench_method("ngram/mine", registry=REGISTRY).as_dict()["policy"] == SPEC


def test_the_default_policy_is_a_preset_that_comes_with_talon() -> None:
    assert known_presets()[DEFAULT_POLICY].parent == KEPT.shipped
    assert find_preset(DEFAULT_POLICY).name == DEFAULT_POLICY
    assert resolve(Parts(), REGISTRY).policy == talon_core.build("tree policy", find_preset(DEFAULT_POLICY).policy)


def test_no_preset_that_comes_with_talon_has_a_registered_name() -> None:
    shipped = {file.name.removesuffix(ENDING) for file in KEPT.shipped.glob(f"*{ENDING}")}
    assert shipped
    assert not shipped & {*REGISTRY.names("tree policy"), *REGISTRY.names("drafter")}


def test_a_registered_policy_goes_before_a_preset_and_somebody_is_told(
    own_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(own_data, "chain", as_text(made("chain")))
    with caplog.at_level(logging.WARNING, "talon_core"):
        assert resolve(Parts(policy="chain"), REGISTRY).parts.policy == "chain"
    (record,) = caplog.records
    assert "'chain' is the registered tree policy; the preset in '" in record.getMessage()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("talon", "as a registered tree policy is"),
        ("ngram", "as a registered drafter is"),
        ("none", "which means that there is none"),
        ("default", "comes with TALON"),
        ("a/b", "is none; it must"),
        ("a:b", "is none; it must"),
        ("", "is none; it must"),
        ("x.json", "is none; it must"),
    ],
)
def test_a_name_that_means_something_else_is_refused(own_data: Path, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_preset_name(name, REGISTRY)
    with pytest.raises(ValueError, match=why):
        save_preset(made(name), REGISTRY)
    assert [file.name for file in (own_data / "presets").iterdir()] == ["mine.json"]


def test_an_unknown_name_is_told_what_there_is() -> None:
    says = r"^no tree policy 'mien'; did you mean 'mine'\? there are: .*chain, .*heuristic, {}opt-tree, .*; presets: "
    with pytest.raises(LookupError, match=says.format("none, ")):
        resolve(Parts(policy="mien"), REGISTRY)
    with pytest.raises(LookupError, match=says.format("")):  # which does not make none
        talon_core.build("tree policy", "mien")
    with pytest.raises(LookupError, match=r"no tree policy '\.\./presets/mine'"):
        talon_core.build("tree policy", "../presets/mine")


def test_none_is_not_offered_where_it_is_no_policy() -> None:
    for make in (lambda: talon_core.build("tree policy", "none"), lambda: space_of(REGISTRY, "none")):
        with pytest.raises(LookupError, match=r"^no tree policy 'none'; there are: .*heuristic, opt-tree"):
            make()


def test_a_preset_of_a_policy_that_is_not_installed_says_so(own_data: Path) -> None:
    put(own_data, "theirs", as_text(made("theirs", policy="their-policy:x=1")))
    with pytest.raises(LookupError, match=r"preset 'theirs' in .*: no tree policy 'their-policy'; there are"):
        talon_core.build("tree policy", "theirs")
    put(own_data, "again", as_text(made("again", policy="mine")))
    with pytest.raises(LookupError, match="no tree policy 'mine'"):
        spelled_out(REGISTRY, "again")


BROKEN = {
    "cut off": as_text(made())[:40],
    "empty": "",
    "a list": "[]",
    "nested": "[" * 100_000,
    "a profile": json.dumps({"kind": "talon profile", "format": 1}),
    "another format": json.dumps({**made().as_dict(), "format": 2}),
    "no policy": json.dumps({name: value for name, value in made().as_dict().items() if name != "policy"}),
    "a number": json.dumps({**made().as_dict(), "policy": 3}),
    "an empty policy": json.dumps({**made().as_dict(), "policy": ":mu=1"}),
    "control characters": json.dumps({**made().as_dict(), "policy": "talon\x1b[2J"}),
    "an endless policy": json.dumps({**made().as_dict(), "policy": "t" * 100_000}),
    "an option without a value": json.dumps({**made().as_dict(), "policy": "talon:mu"}),
    "unknown field": json.dumps({**made().as_dict(), "run": "rm"}),
    "unknown origin": json.dumps({**made().as_dict(), "origin": "found"}),
    "gains": json.dumps({**made().as_dict(), "gains": {"none": {"median": "much"}}}),
    "gains without prompts": json.dumps({**made().as_dict(), "gains": {"none": {"median": 1, "low": 1, "high": 1}}}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_no_preset_gets_a_sentence(own_data: Path, what: str) -> None:
    put(own_data, "broken", BROKEN[what])
    with pytest.raises(ValueError, match=r"broken\.json' is no preset of talon tune: ") as caught:
        talon_core.build("tree policy", "broken")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_a_pipe_in_the_place_of_a_preset_is_not_waited_for(own_data: Path) -> None:
    (own_data / "presets" / "folder.json").mkdir()
    with pytest.raises(ValueError, match="is no file"):
        talon_core.build("tree policy", "folder")


def test_a_preset_with_a_bad_value_says_which(own_data: Path) -> None:
    put(own_data, "bad", as_text(made("bad", policy="talon:mu=7")))
    with pytest.raises(ValueError, match=r"^preset 'bad': tree policy 'talon': 'mu' must be <= 1: 7"):
        talon_core.build("tree policy", "bad")


def test_a_file_whose_name_is_none_is_no_preset_and_the_listing_says_so(own_data: Path) -> None:
    from talon_core.cli.listing import list_presets

    for name in ("my preset", "-dash", "line\nbreak"):
        put(own_data, name, as_text(made()))
    assert [*known_presets()] == ["default", "mine"]
    failures: dict[str, str] = {}
    assert [one["name"] for one in list_presets(failures)] == ["default", "mine"]
    assert [*failures] == ["preset '-dash'", "preset 'line break'", "preset 'my preset'"]
    assert all("has a name that is none; it must be of letters" in why for why in failures.values())
    assert all(why.isprintable() for why in failures.values())


def test_a_long_name_is_unknown_and_not_asked_of_the_file_system() -> None:
    with pytest.raises(LookupError, match="no tree policy 'xxx"):
        spelled_out(REGISTRY, "x" * 5000)
    with pytest.raises(ValueError, match="it must be of letters") as raised:
        check_preset_name("x" * 300, REGISTRY)
    assert len(str(raised.value)) < 300


def test_a_link_to_nowhere_is_a_preset_that_cannot_be_read(own_data: Path) -> None:
    (own_data / "presets" / "linked.json").symlink_to("nowhere.json")
    with pytest.raises(OSError, match=r"linked\.json"):
        spelled_out(REGISTRY, "linked")


def test_what_a_preset_is_compared_with_is_shown_in_terminals(own_data: Path) -> None:
    text = json.loads(as_text(made()))
    text["gains"] = {"\x1b[31mnone": text["gains"]["none"]}
    put(own_data, "red", json.dumps(text))
    with pytest.raises(ValueError, match=r"'gains' has the policy '\\x1b\[31mnone'"):
        find_preset("red")
