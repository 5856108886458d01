"""`talon doctor`."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from talon_core.cli import doctor
from talon_core.cli.drafter_check import drafter_of_files, drafter_rows
from talon_core.drafter import DrafterSpec
from talon_core.models.loading import load_model
from talon_core.plugins.presets import Preset, save_preset
from talon_core.plugins.registry import KINDS, Registered, Registry, load_registry
from talon_core.runtime.blocks import Held
from talon_core.runtime.machine import describe_machine
from talon_kernels import native
from talon_tests.tiny_gguf import write_gguf


@pytest.fixture(autouse=True)
def _measured_at_once(monkeypatch, request):
    """Measuring takes a second each time; one test does it."""
    if request.node.name != "test_what_the_kernels_reach_is_measured":
        monkeypatch.setattr("talon_kernels.native.tuning.told_speeds", lambda _: {"memory": "30.0 GB/s"})


def test_a_working_machine_is_reported_as_one(talon):
    ran = talon("doctor", "--json")
    assert ran.answer["problems"] == []
    assert (ran.status, ran.answer["ok"]) == (0, True)
    assert ran.answer["devices"][0]["name"] == "cpu"
    assert ran.answer["devices"][0]["description"] == describe_machine()["cpu"]
    assert ran.answer["devices"][0]["threads"] >= 1
    assert ran.answer["packages"]["torch"]
    assert "triton" in ran.answer["packages"]
    assert "talon-core:talon-strategies" in ran.answer["plugins"]
    assert ran.answer["cache"]["free_bytes"] > 0
    assert {each["name"] for each in ran.answer["models"]} == {"smollm2-135m", "gemma3-270m"}
    assert ran.answer["stdout_is_terminal"] in (True, False)
    assert ran.answer["model"] is None
    assert all("cpu" in each["unavailable"] for each in ran.answer["attention"])


def test_it_says_which_schedule_the_default_has_and_why(talon):
    answer = talon("doctor", "--json").answer["schedule"]
    assert (answer["schedule"], answer["draft_on"]) == ("sync", "thread")
    assert answer["why"].startswith("preset 'default'")
    assert f"sync: {answer['why']}" in " ".join(talon("doctor").out.split())


def test_it_says_of_each_preset_whether_its_schedule_is_taken_here_and_for_a_model(talon, model, tmp_path, monkeypatch):
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    pays = {"schedule": "cached:budget=8", "draft_on": "thread", "said": "it pays", "tried": {}}
    here, name = describe_machine(), "cached:budget=8 on thread"
    for preset, machine, weights, schedule in (
        ("fits", here, None, pays),
        ("elsewhere", {**here, "threads": 99}, None, pays),
        ("another-model", here, "0" * 64, pays),
        ("older", here, None, {**pays, "schedule": "gone"}),
        ("nowhere", here, None, {**pays, "draft_on": "cpu:4000"}),
        ("untried", here, None, None),
    ):
        known = {"name": "big", "weights_sha256": weights}
        profile = {"name": "here", "origin": "measured", "drafter": "ngram", "model": known, "machine": machine}
        save_preset(Preset(preset, "chain", "tuned", profile=profile, schedule=schedule), load_registry())
    (tmp_path / "data/presets/broken.json").write_text("{")
    without, ran = talon("doctor", "--json").answer, talon("doctor", "--model", model, "--json").answer
    assert ran["ok"]
    assert "untried" not in {each["preset"] for each in ran["schedules"]}
    told = {each["preset"]: (each["schedule"], each["why"]) for each in ran["schedules"]}
    assert told["fits"] == ("cached:budget=8", "preset 'fits': it pays")
    assert {told[preset][0] for preset in ("elsewhere", "another-model", "older", "nowhere")} == {"sync"}
    assert "which cannot be used: draft_on is cpu:4000, and this process may use " in told["nowhere"][1]
    assert f"has {name}, found on a machine whose threads is 99 and not " in told["elsewhere"][1]
    assert f"has {name}, found for a model of other weights, big" in told["another-model"][1]
    assert "which cannot be used: no schedule 'gone'" in told["older"][1]
    assert told["broken"][0] is None
    assert "is no preset of talon tune" in told["broken"][1]
    (unasked,) = [each for each in without["schedules"] if each["preset"] == "another-model"]
    assert unasked["schedule"] == "cached:budget=8"  # nobody has named a model
    assert "schedule of fits" in talon("doctor").out


def test_people_get_a_table(talon):
    ran = talon("doctor")
    assert ran.status == 0
    assert "python" in ran.out
    assert "everything that is needed is there" in ran.out


def test_with_a_model_it_says_what_would_run_it(talon, model):
    answer = talon("doctor", "--model", model, "--json").answer
    names = {each["name"] for each in answer["attention"]}
    assert answer["model"]["class"] == "LlamaForCausalLM"
    assert answer["model"]["attention"] in names
    assert "accelerator" in answer["model"]


@pytest.fixture
def asking(model, tmp_path):
    """The model again, but of positions that are computed from how many there are, which nobody can write down."""
    folder = Path(shutil.copytree(model, tmp_path / "asking"))
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


REPEATED = "recorded, and repeated without Python"
NOT_REPEATED = r"not repeated: .+ asks for a number of the positions"


def test_it_says_whether_the_models_passes_are_recorded_or_why_not(talon, model, asking, monkeypatch):
    if native.load() is None:
        pytest.skip("there are no native kernels here")
    assert talon("doctor", "--model", model, "--json").answer["model"]["passes"] == REPEATED
    said = talon("doctor", "--model", asking, "--json").answer["model"]["passes"]
    assert re.fullmatch(NOT_REPEATED, said)
    for path, passes in ((Path(model), REPEATED), (Path(asking), said)):
        monkeypatch.chdir(path.parent)
        told = talon("doctor", "--model", f"./{path.name}").out
        assert f"./{path.name}: passes {passes}" in " ".join(told.split())
    with native.switch_off("nobody writes passes down"):
        assert talon("doctor", "--model", model, "--json").answer["model"]["passes"] is None


def test_it_says_whether_a_drafters_own_passes_are_recorded_or_why_not(talon, model, asking):
    if native.load() is None:
        pytest.skip("there are no native kernels here")
    for target, drafter, passes in (
        (asking, f"draft-model:model={model}", REPEATED),
        (model, f"draft-model:model={asking}", NOT_REPEATED),
        (model, f"hybrid:of=draft-model[model={asking}]+ngram", NOT_REPEATED),
    ):
        found = check(talon, target, drafter).answer["drafter"]
        assert re.fullmatch(passes, found["passes"])
        assert (f"{found['name']}: passes", found["passes"]) in drafter_rows(found)
    found = check(talon, asking, "ngram").answer["drafter"]
    assert found["passes"] is None  # it runs none
    assert "ngram: passes" not in dict(drafter_rows(found))


def test_a_model_that_cannot_be_loaded_is_a_problem(talon, tmp_path):
    ran = talon("doctor", "--model", str(tmp_path), "--json")
    assert (ran.status, ran.answer["ok"]) == (1, False)
    assert "cannot be loaded" in ran.answer["problems"][0]


def test_missing_plugins_are_a_problem(talon, monkeypatch):
    nothing = Registry({kind: {} for kind in KINDS}, {"talon-core:talon-strategies": "ImportError: gone"})
    monkeypatch.setattr(doctor, "load_registry", lambda: nothing)
    ran = talon("doctor", "--json")
    assert ran.status == 1
    said = "the default parts cannot be made: preset 'default' in "
    assert any(said in each and "no tree policy 'talon-cost'" in each for each in ran.answer["problems"])
    assert ran.answer["failures"] == {"talon-core:talon-strategies": "ImportError: gone"}
    assert "broken: " in talon("doctor").out


def missing(monkeypatch, tmp_path, *, writable: bool, free: int) -> None:
    """A machine without models, whose cache can be written to or not, and has so much room."""
    monkeypatch.setenv("TALON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor.os, "access", lambda *_: writable)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


@pytest.mark.parametrize(
    ("writable", "free", "why"),
    [
        (False, 10**12, "cannot be written to; set TALON_CACHE to one that can"),
        (True, 10**6, "MB while it is converted, and .* has 1 MB free; make room, or set TALON_CACHE"),
    ],
)
def test_a_machine_without_models_that_can_have_none_is_broken(talon, monkeypatch, tmp_path, writable, free, why):
    missing(monkeypatch, tmp_path, writable=writable, free=free)
    ran = talon("doctor", "--json")
    assert ran.status == 1
    (problem,) = ran.answer["problems"]
    assert re.match(rf"model 'smollm2-135m' is not here, and cannot be fetched: .*{why}", problem)


def test_a_machine_without_models_that_can_fetch_one_is_not(talon, monkeypatch, tmp_path):
    missing(monkeypatch, tmp_path, writable=True, free=10**12)
    assert talon("doctor").status == 0


def test_a_cache_that_is_only_read_is_no_problem_where_the_model_is_there(talon, monkeypatch, tmp_path):
    missing(monkeypatch, tmp_path, writable=False, free=0)
    monkeypatch.setattr("talon_core.models.is_cached", lambda name: name == "smollm2-135m")
    assert talon("doctor", "--json").answer["problems"] == []
    assert "read only" in talon("doctor").out


def test_nor_where_the_model_that_is_asked_for_needs_none(talon, monkeypatch, tmp_path, model):
    missing(monkeypatch, tmp_path, writable=False, free=0)
    assert talon("doctor", "--model", model).status == 0


@pytest.mark.parametrize(
    ("chosen", "fault"), [("gcc '", "is no command"), ("no-such-compiler -m64", "names no program")]
)
def test_a_compiler_that_was_chosen_and_is_none_is_said(talon, monkeypatch, chosen, fault):
    monkeypatch.setenv("CC", chosen)
    assert fault in talon("doctor", "--json").answer["compiler"]["fault"]


def test_a_compiler_that_says_nothing_is_not_waited_for(talon, monkeypatch, tmp_path):
    slow = tmp_path / "cc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(doctor, "SECONDS_TO_ANSWER", 0.1)
    assert "timed out" in talon("doctor", "--json").answer["compiler"]["fault"]


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_a_problem(monkeypatch, package):
    def version(name: str) -> str:
        if name == package:
            raise doctor.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor, "version", version)
    report = doctor.examine()
    assert f"the package {package} is not installed" in report["problems"]
    json.dumps(report)


def test_torch_that_cannot_be_imported_is_a_problem_and_no_traceback(monkeypatch, tmp_path):
    monkeypatch.setenv("TALON_DATA", str(tmp_path / "data"))
    kept = {"schedule": "cached:budget=8", "draft_on": "thread", "said": "it pays", "tried": {}}
    profile = {"name": "here", "origin": "measured", "drafter": "ngram", "model": {}, "machine": describe_machine()}
    save_preset(Preset("kept", "chain", "tuned", profile=profile, schedule=kept), load_registry())
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it is an ImportError
    report = doctor.examine()
    assert any(problem.startswith("torch cannot be imported: ") for problem in report["problems"])
    assert not report["ok"]
    assert report["devices"] == []
    json.dumps(report)


# Drafters

HIDDEN, VOCAB = 64, 257
"""Of the model that the tests of commands share."""


def head(folder, config=None, **changes):
    """The folder, as text, with a random EAGLE-3 head for the model in it; what is changed to None is left out."""
    torch.manual_seed(0)
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": (HIDDEN // 2, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": (HIDDEN // 2, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "midlayer.mlp.gate_proj.weight": (32, HIDDEN),
        "midlayer.mlp.up_proj.weight": (32, HIDDEN),
        "midlayer.mlp.down_proj.weight": (HIDDEN, 32),
        "lm_head.weight": (VOCAB, HIDDEN),
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "midlayer.post_attention_layernorm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    tensors = {name: torch.randn(shape) / 8 for name, shape in shapes.items()} | changes
    folder.mkdir(exist_ok=True)
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_attention_heads": 4, **(config or {})}))
    return str(folder)


def check(talon, model, drafter):
    return talon("doctor", "--model", model, "--drafter", drafter, "--json")


def test_of_a_drafters_folder_it_says_what_it_is_and_how_often_it_is_right(talon, model, tmp_path):
    ran = check(talon, model, head(tmp_path))
    assert (ran.status, ran.answer["problems"]) == (0, [])
    found = ran.answer["drafter"]
    assert found["name"] == "eagle3"
    assert found["recognised"]["layout"] == "eagle"
    assert found["recognised"]["states"] == [2, 1, 0]
    assert found["recognised"]["layer_ids_are"] == "default"
    acceptance = found["acceptance"]
    assert acceptance["policy"] == "chain:length=5"
    assert acceptance["prompts"] == 4
    assert acceptance["mean_accepted_tokens"] >= 1
    assert acceptance["new_tokens"] <= 4 * 64
    assert [one["depth"] for one in acceptance["by_depth"]] == [1, 2, 3, 4, 5]
    offered, accepted = ([one[what] for one in acceptance["by_depth"]] for what in ("offered", "accepted"))
    assert offered == sorted(offered, reverse=True)
    assert all(0 <= one <= other for one, other in zip(accepted, offered, strict=True))


def test_of_explicit_layers_it_says_which_meaning_was_chosen_and_how_both_agree(talon, model, tmp_path):
    path = head(tmp_path, {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]})
    said = check(talon, model, path).answer["drafter"]["recognised"]
    assert set(said["agreement_by_meaning"]) == {"boundary", "block"}
    assert said["layer_ids_are"] in ("boundary", "block")
    said = check(talon, model, f"eagle3:path={path},layer_ids_are=block").answer["drafter"]["recognised"]
    assert (said["layer_ids_are"], said["states"]) == ("block", [1, 2, 2])


def test_people_get_the_drafter_in_the_table(talon, model, tmp_path):
    ran = talon(
        "doctor", "--model", model, "--drafter", head(tmp_path, {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]})
    )
    assert ran.status == 0
    for line in ("eagle3: layout", "eagle3: states", "eagle3: agreement_by_meaning", "eagle3: depth 5", "tokens per"):
        assert line in ran.out


def test_any_drafter_can_be_looked_at(talon, model):
    found = check(talon, model, "ngram:min_match=2").answer["drafter"]
    assert (found["name"], found["recognised"]) == ("ngram", {})
    assert found["acceptance"]["mean_accepted_tokens"] >= 1
    overlap = found["overlap"]
    assert overlap["pays"] is (overlap["at_best"] > 1)
    assert overlap["verify_seconds"] > 0
    assert "can gain" in overlap["said"] or "at best" in overlap["said"]


def test_a_drafter_that_runs_the_targets_layers_cannot_go_ahead(talon, model):
    overlap = check(talon, model, "draft-model:skip=1").answer["drafter"]["overlap"]
    assert overlap == {
        "pays": False,
        "said": "no schedule but sync can be used: the drafter runs layers of the target, which are busy",
    }


def test_medusa_heads_are_recognised(talon, model, tmp_path):
    torch.manual_seed(0)
    tensors = {"0.0.linear.weight": (HIDDEN, HIDDEN), "0.0.linear.bias": (HIDDEN,), "0.1.weight": (VOCAB, HIDDEN)}
    save_file({name: torch.randn(shape) for name, shape in tensors.items()}, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text("{}")
    found = check(talon, model, str(tmp_path)).answer["drafter"]
    assert found["name"] == "medusa"
    assert [one["depth"] for one in found["acceptance"]["by_depth"]] == [1]


def test_a_drafter_that_cannot_be_used_is_a_problem(talon, model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    save_file({"weight": torch.ones(2)}, tmp_path / "other" / "model.safetensors")
    (tmp_path / "other" / "config.json").write_text("{}")
    wrong = {
        str(tmp_path / "nowhere"): "there is no drafter",
        str(tmp_path / "empty"): "has no config.json",
        str(tmp_path / "other"): "no drafter knows the files of",
        head(tmp_path / "parallel", {"pard_token": 3}): "drafts in parallel (P-EAGLE)",
        head(tmp_path / "lacking", **{"norm.weight": None}): "lacks the tensor norm.weight",
        f"eagle:path={head(tmp_path / 'eagle3')}": "is an EAGLE-3 head; use drafter 'eagle3'",
    }
    for drafter, sentence in wrong.items():
        ran = check(talon, model, drafter)
        assert ran.status == 1
        (problem,) = ran.answer["problems"]
        assert problem.startswith(f"drafter '{drafter}' cannot be used: ")
        assert sentence in problem
        assert problem.count(sentence) == 1
        assert ran.answer["drafter"] is None


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        ("ngrm", "no drafter 'ngrm'; did you mean 'ngram'?"),
        ("ngram:min_match=0", "drafter 'ngram': 'min_match' must be >= 1"),
    ],
)
def test_a_drafter_that_is_misspelt_is_bad_input_and_no_problem_of_the_machine(talon, drafter, sentence):
    assert sentence in check(talon, "no/model", drafter).refusal


def test_without_a_model_that_works_the_drafter_is_not_opened(talon, tmp_path):
    ran = check(talon, str(tmp_path), "ngram")
    assert ran.status == 1
    assert len(ran.answer["problems"]) == 1
    assert ran.answer["drafter"] is None


def test_files_that_two_drafters_know_are_nobodys():
    class Known(DrafterSpec):
        @classmethod
        def of_files(cls, path):
            return cls()

        def open(self, target):
            raise NotImplementedError

    class Broken(Known):
        @classmethod
        def of_files(cls, path):
            raise KeyError(path)

    def registry(**classes):
        return Registry(
            {"drafter": {name: Registered("drafter", name, cls, "x:y") for name, cls in classes.items()}}, {}
        )

    assert isinstance(drafter_of_files("here", registry(known=Known, broken=Broken)), Known)
    with pytest.raises(ValueError, match="the files of 'here' fit more than one drafter; give one of one, two with"):
        drafter_of_files("here", registry(one=Known, two=Known))
    with pytest.raises(ValueError, match=r"drafter 'Broken' \(.*\) raised KeyError in of_files: 'here'"):
        drafter_of_files("here", registry(broken=Broken))

    class Odd(Known):
        @classmethod
        def of_files(cls, path):
            return path

    with pytest.raises(ValueError, match=r"drafter 'Odd' \(.*\) returned 'here' from of_files; it must return a Draft"):
        drafter_of_files("here", registry(odd=Odd))


def test_what_the_kernels_reach_is_measured(talon):
    from talon_kernels.native import unavailable
    from talon_kernels.native.tuning import NAMES

    measured = talon("doctor", "--json").answer["measured"]
    if unavailable() is not None:
        assert measured == {}
        return
    figures = measured["native"]
    assert [*figures] == ["memory", "multiplications", *NAMES.values()]
    assert re.match(r"[\d.]+ GB/s", figures["memory"])
    assert re.match(r"\d+ G/s", figures["multiplications"])
    for name in NAMES.values():
        share = r"(\d\d?% of|as fast as)"
        assert re.match(rf"1 row [\d.]+ GB/s, {share} a sum .*; 8 rows \d+ G/s, {share} the mult", figures[name])


def test_what_the_kernels_reach_fits_a_narrow_terminal(talon, monkeypatch):
    from talon_kernels.native import unavailable
    from talon_kernels.native.tuning import NAMES

    if unavailable() is not None:
        pytest.skip(f"no native kernels here: {unavailable()}")
    said = " ".join(["1 row 25.1 GB/s, as fast as a sum over them"] * 5)
    monkeypatch.setattr("talon_kernels.native.tuning.told_speeds", lambda _: dict.fromkeys(NAMES.values(), said))
    monkeypatch.setenv("COLUMNS", "80")
    rows = talon("doctor").out.splitlines()
    assert max(map(len, rows)) <= 80
    for name in NAMES.values():
        assert any(re.match(rf"native: {re.escape(name)} +1 row", row) for row in rows), name


def test_it_says_how_much_of_a_gguf_file_stays_in_blocks(talon, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_gguf(tmp_path / "tiny.gguf", {"attn_q": "Q8_0", "token_embd": "Q8_0"})
    answer = talon("doctor", "--model", str(path), "--json").answer["model"]
    held = Held.by(load_model(str(path))[0])
    assert answer["weights"] == f"{held.in_blocks:,} of {held.whole:,} bytes in blocks; the rest float32"
    assert 0 < held.in_blocks < held.whole / 4
    assert answer["weights"] in " ".join(talon("doctor", "--model", path.name).out.split())
    assert talon("doctor", "--model", str(model), "--json").answer["model"]["weights"] is None


def test_a_long_path_leaves_room_for_what_is_said_of_the_model(talon, model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = Path("/", *[".."] * 30, *Path(model).parts[1:])
    rows = talon("doctor", "--model", str(path)).out.splitlines()
    assert any(row.rstrip().endswith(" float32") for row in rows)
    assert max(map(len, rows)) <= 80
    named = "".join(row[:36].strip() for row in rows).replace(" ", "")  # a row may end between two words
    assert named.count(f"{path}:dtype") == 1


def test_what_is_not_known_of_a_model_has_no_row(talon, model, monkeypatch):
    monkeypatch.chdir(Path(model).parent)
    name = Path(model).name
    rows = [row.split() for row in talon("doctor", "--model", f"./{name}").out.splitlines()]
    assert [f"./{name}:", "dtype", "float32"] in rows
    assert not [row for row in rows if row[-1:] == ["None"]]
