"""The script that times prompts beside llama.cpp goes through on a model of milliseconds."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from talon_tests.tiny_gguf import write_gguf

SCRIPT = Path(__file__).with_name("prompt_speed.py")


@pytest.mark.matrix
def test_the_script_times_prompts_beside_llama_cpp(tmp_path, monkeypatch):
    pytest.importorskip("xllamacpp", reason="the extra llama-cpp is not installed")
    model = write_gguf(tmp_path / "tiny.gguf", "Q4_1")
    out = tmp_path / "figures.json"
    sizes = ["--repetitions", "1", "--tokens", "5", "20"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--model", str(model), *sizes, "--out", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = json.loads(out.read_text())["tokens_a_second"]
    assert [row.pop("tokens") for row in rows] == [5, 20]
    assert all(len(row) == 4 and min(each) > 0 for row in rows for each in row.values())
