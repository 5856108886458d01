"""`talon doctor`."""

import json

import pytest

from talon_core.cli import doctor
from talon_core.registry import KINDS, Registry


def test_a_working_machine_is_reported_as_one(talon):
    ran = talon("doctor", "--json")
    assert ran.answer["problems"] == []
    assert (ran.status, ran.answer["ok"]) == (0, True)
    assert ran.answer["devices"][0]["name"] == "cpu"
    assert ran.answer["devices"][0]["threads"] >= 1
    assert ran.answer["packages"]["torch"]
    assert "triton" in ran.answer["packages"]
    assert "talon-core:talon-strategies" in ran.answer["plugins"]
    assert ran.answer["cache"]["free_bytes"] > 0
    assert {each["name"] for each in ran.answer["models"]} == {"smollm2-135m", "gemma3-270m"}
    assert ran.answer["stdout_is_terminal"] in (True, False)
    assert ran.answer["model"] is None
    assert all("cpu" in each["unavailable"] for each in ran.answer["attention"])


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


def test_a_model_that_cannot_be_loaded_is_a_problem(talon, tmp_path):
    ran = talon("doctor", "--model", str(tmp_path), "--json")
    assert (ran.status, ran.answer["ok"]) == (1, False)
    assert "cannot be loaded" in ran.answer["problems"][0]


def test_missing_plugins_are_a_problem(talon, monkeypatch):
    nothing = Registry({kind: {} for kind in KINDS}, {"talon-core:talon-strategies": "ImportError: gone"})
    monkeypatch.setattr(doctor, "load_registry", lambda: nothing)
    ran = talon("doctor", "--json")
    assert ran.status == 1
    assert any("the default parts cannot be made: no tree policy 'talon'" in each for each in ran.answer["problems"])
    assert ran.answer["failures"] == {"talon-core:talon-strategies": "ImportError: gone"}
    assert "broken: " in talon("doctor").out


def test_a_cache_that_cannot_be_written_to_is_a_problem(talon, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("TALON_CACHE", str(file))
    ran = talon("doctor", "--json")
    assert ran.status == 1
    assert any("TALON_CACHE" in each for each in ran.answer["problems"])


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
