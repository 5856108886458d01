"""The script that times replays beside decoding goes through on a model of milliseconds."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from talon_tests.tiny_models import of_words

SCRIPT = Path(__file__).with_name("trace_speed.py")
METHODS = ["none", "chain:length=2"]


@pytest.fixture
def where(tmp_path, forked_python, monkeypatch):
    """The options that name a model and prompts; replays are processes, which begin at once here."""
    monkeypatch.setattr(sys, "executable", forked_python)
    for part in of_words():
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "two.jsonl").write_text('{"turns": ["t5 t6 t7"]}\n{"turns": ["t3 t3 t4 t4"]}\n', encoding="utf-8")
    sizes = ["--max-new-tokens", "12", "--repetitions", "1", "--replays", "2"]
    return ["--model", str(tmp_path / "model"), "--prompts", str(tmp_path / "two.jsonl"), *sizes]


def test_the_script_finds_the_same_passes_in_both_ways(where, tmp_path, monkeypatch):
    out = tmp_path / "figures.json"
    given = [*where, "--drafter", "draft-model:skip=2", "--profile", "h100-llama-3.1-8b", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, *METHODS])
    with pytest.raises(ValueError, match="is of another machine, model or drafter"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, "--other-machine", *METHODS])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    figures = json.loads(out.read_text())
    assert [*figures["methods"]] == METHODS
    assert (figures["recording"]["texts"], figures["recording"]["positions"]) == (2, 24)
    for one in figures["methods"].values():
        assert one["same_passes"]
        assert one["outside"] == 0
        assert one["ratio"] == pytest.approx(one["decoding_seconds"] / one["replay_seconds"])
    decoding = sum(one["decoding_seconds"] for one in figures["methods"].values())
    assert figures["together"]["decoding_seconds"] == decoding > 0


def test_a_sampled_trace_with_whole_laws_is_timed_too(where, tmp_path, monkeypatch):
    out = tmp_path / "figures.json"
    sampled = ["--temperature", "0.8", "--laws", "--nodes", "4", "--depth", "3", "--out", str(out)]
    given = [*where, "--drafter", "draft-model:skip=2", "--trace", str(tmp_path / "trace"), *sampled]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given, "chain:length=2", "sampled-chain:length=1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    chain, drawn = json.loads(out.read_text())["methods"].values()
    assert (chain["same_passes"], chain["outside"]) == (True, 0)
    assert drawn["same_passes"] is None  # it is another text
    assert drawn["mean_accepted_tokens"] > 1
    settings = json.loads((tmp_path / "trace" / "manifest.json").read_text())["settings"]
    assert (settings["temperature"], settings["laws"], settings["nodes"], settings["depth"]) == (0.8, True, 4, 3)


def test_a_replay_that_says_something_else_ends_the_script_with_status_1(where, tmp_path, monkeypatch):
    script = runpy.run_path(str(SCRIPT))
    own = script["_replayed"]

    def wrong(methods, trace, profile=None):
        answer = own(methods, trace, profile)
        answer["methods"][-1]["target_passes"] += 1
        return answer

    monkeypatch.setitem(script["main"].__globals__, "_replayed", wrong)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *where, "--drafter", "ngram", "chain:length=2"])
    with pytest.raises(SystemExit, match=r"^decoding and replay differ with chain:length=2$"):
        script["main"]()
