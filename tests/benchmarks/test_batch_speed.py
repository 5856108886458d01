"""The script that compares slots with fixed batches goes through on a model of milliseconds."""

import json
import runpy
import sys
from pathlib import Path

from talon_tests.tiny_models import of_words

SCRIPT = Path(__file__).with_name("batch_speed.py")
PROMPT_TOKENS = 23


def test_every_way_reads_every_prompt_each_time(read, tmp_path, monkeypatch):
    for part in of_words():
        part.save_pretrained(tmp_path / "model")
    prompts, out = tmp_path / "two.jsonl", tmp_path / "figures.json"
    lines = [json.dumps({"turns": [f"t{number} " + "t5 " * (PROMPT_TOKENS - 1)]}) for number in (7, 8)]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    what = ["--model", str(tmp_path / "model"), "--prompts", str(prompts), "--drafter", "ngram"]
    how = ["--policy", "chain:length=2", "--slots", "1", "--longest", "32", "--repetitions", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *what, *how, "fixed", "slots", "plain"])
    script = runpy.run_path(str(SCRIPT), run_name="__main__")
    assert [*json.loads(out.read_text())["ways"]] == ["fixed", "slots", "plain"]
    # a round begins with the last token; each way is warmed up once
    assert read.count(PROMPT_TOKENS - 1) == 3 * 2 * script["SEQUENCES"]
