"""The script that puts what was predicted beside what decoding takes goes through on a model of milliseconds."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from talon_core.bench.prompts import read_sets
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.trace.record import Recorder, TracePlan
from talon_tests.tiny_models import of_words, two_sets

SCRIPT = Path(__file__).with_name("predicted_speed.py")
DRAFTER, METHODS = "draft-model:skip=2", ["none", "chain:length=2"]


def test_the_script_says_both_of_each_method_and_set(tmp_path, monkeypatch, capsys):
    model = of_words()
    for part in model:
        part.save_pretrained(tmp_path / "model")
    plan = TracePlan("tiny", tuple(read_sets(two_sets(tmp_path))), max_new_tokens=12, depth=4)
    Recorder(plan, *model, built(load_registry(), "drafter", DRAFTER), DRAFTER).run(tmp_path / "trace")
    given = [str(tmp_path / "trace"), "h100-llama-3.1-8b", *METHODS, "--model", str(tmp_path / "model")]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, "--repetitions", "1"])
    with pytest.raises(ValueError, match="is of another machine, model or drafter"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, "--repetitions", "1", "--other-machine"])
    capsys.readouterr()
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out)["methods"]
    assert [*found] == METHODS
    for sets in found.values():
        assert {name: one["new_tokens"] for name, one in sets.items()} == {"some": 36, "other": 12, "all": 48}
        for one in sets.values():
            ratio = one["predicted_tokens_per_second"] / one["tokens_per_second"]
            assert one["error"] == pytest.approx(ratio - 1)
    by_set = [[sets[name]["predicted_tokens_per_second"] for name in ("some", "other")] for sets in found.values()]
    for sets, speeds in zip(found.values(), by_set, strict=True):
        assert min(speeds) <= sets["all"]["predicted_tokens_per_second"] <= max(speeds)
