"""The script that times passes goes through on a model of milliseconds; docs have what it says of a real one."""

import json
import runpy
import sys
from pathlib import Path

from talon_tests.tiny_gguf import write_gguf

SCRIPT = Path(__file__).with_name("pass_speed.py")


def test_the_script_times_passes_in_all_four_ways(tmp_path, monkeypatch):
    model = write_gguf(tmp_path / "tiny.gguf", "Q4_1")
    out = tmp_path / "figures.json"
    sizes = ["--repetitions", "1", "--nodes", "1", "3"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--model", str(model), *sizes, "--out", str(out)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    figures = json.loads(out.read_text())
    assert [row["nodes"] for row in figures["milliseconds"]] == [1, 3]
    assert len(figures["milliseconds"][0]) == 5
    assert all(time > 0 for row in figures["milliseconds"] for time in row.values())
    assert all(0 < found["outside"] < found["milliseconds"] for found in figures["rounds"].values())
    assert figures["bytes"]["blocks"] < figures["bytes"]["float32"] / 3
    assert figures["not_recorded"] == {"float32": None, "blocks": None}
