"""The script that compares schedules goes through on a model of milliseconds, also where that is made slower."""

import json
import runpy
import sys
from pathlib import Path

import torch

from talon_tests.tiny_gguf import write_gguf

SCRIPT = Path(__file__).with_name("schedule_speed.py")


def test_the_script_compares_schedules_on_a_target_that_is_slower_and_says_the_same(tmp_path, monkeypatch):
    model, out = write_gguf(tmp_path / "tiny.gguf", "Q4_1"), tmp_path / "figures.json"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a b a b a b"}\n{"prompt": "b a b"}\n', encoding="utf-8")
    threads, texts = torch.get_num_threads(), []
    for more in ("0", "2"):
        how = ["--limit", "2", "--max-new-tokens", "12", "--layers-more", more, "--out", str(out)]
        what = ["--drafters", "ngram", "--schedules", "cached:budget=4", "pearl", "--policy", "chain:length=2"]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--model", str(model), "--prompts", str(prompts), *how, *what])
        try:
            script = runpy.run_path(str(SCRIPT), run_name="__main__")
        finally:
            torch.set_num_threads(threads)
        assert script["SYNC"] == "sync"
        assert not any("skip=" in drafter for drafter in script["DRAFTERS"])  # they run the target's own layers
        (measured,) = json.loads(out.read_text())["drafters"].values()
        assert [*measured["ways"]] == ["sync", "cached:budget=4 on thread", "pearl on thread"]
        assert not measured["texts_differ"]
        assert all(one["tokens_per_second"] > 0 for one in measured["ways"].values())
        assert measured["ways"]["sync"]["hits"] == 0
        texts.append(measured["ways"]["sync"]["rounds"])
    assert texts[0] == texts[1]  # the layers that were added change nothing
