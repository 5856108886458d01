"""The script that compares schedules goes through on a model of milliseconds, also where that is made slower."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from talon_core.costs import Costs
from talon_core.rounds import Round, Span
from talon_core.tree import TokenTree
from talon_tests.tiny_gguf import write_gguf
from talon_tests.tiny_models import of_words

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
        assert not any("skip=" in drafter for drafter in script["DRAFTERS"])  # they run the target's own layers
        (measured,) = json.loads(out.read_text())["drafters"].values()
        assert [*measured["ways"]] == ["sync", "cached:budget=4 on thread", "pearl on thread"]
        assert not measured["texts_differ"]
        assert all(one["tokens_per_second"] > 0 for one in measured["ways"].values())
        for one in measured["ways"].values():
            assert 0 < one["target_waits"] < 1
            assert 0 <= one["drafter_waits"] < 1
        assert sum(measured["ways"]["sync"][f"{who}_waits"] for who in ("target", "drafter")) > 0.999  # in turn
        assert measured["ways"]["sync"]["hits"] == 0
        texts.append(measured["ways"]["sync"]["rounds"])
    assert texts[0] == texts[1]  # the layers that were added change nothing


def test_every_way_reads_every_prompt_each_time(read):
    from schedule_ways import measured, ways_of

    ways = ways_of(*of_words(), "tiny", "ngram", "chain:length=2", ["pearl"], ["thread"])
    texts = ["t5 t6 t7 t5 t6", "t5 t6 t7 t5"]
    threads = torch.get_num_threads()
    try:
        measured("ngram", ways, texts, 4, 2)
    finally:
        torch.set_num_threads(threads)
    # a round begins with the last token, and the first prompt warms up twice
    assert [read.count(len(text.split()) - 1) for text in texts] == [2 * (2 + 2), 2 * 2]


def test_what_is_predicted_stands_beside_what_was_measured(tmp_path, monkeypatch):
    """Whether it is right, only a quiet machine can tell; that both are of the same rounds can be seen here."""
    model, out = tmp_path / "tiny", tmp_path / "figures.json"
    for part in of_words(vocab_size=11):
        part.save_pretrained(model)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "t5 t6 t7"}\n{"prompt": "t3 t3 t4 t4"}\n', encoding="utf-8")
    drafters = ["ngram", f"draft-model:model={model}"]
    how = ["--limit", "2", "--max-new-tokens", "12", "--predict", "--contexts", "16", "--depth", "6", "--nodes", "16"]
    what = ["--drafters", *drafters, "--schedules", "cached:budget=4", "pearl", "--policy", "chain:length=2"]
    where = ["--model", str(model), "--prompts", str(prompts), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *where, *how, *what])
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    for measured in json.loads(out.read_text())["drafters"].values():
        assert not measured["texts_differ"]
        for name, one in measured["ways"].items():
            predicted = one["predicted"]
            assert predicted["outside"] == 0
            assert predicted["shared"] >= 1
            assert predicted["drafter_shared"] >= 1
            assert predicted["over_measured"] == predicted["decoding"] / one["decoding"]
            assert 0.02 < predicted["over_measured"] < 50  # of the same order: the profile is of this model
            if name == "sync":
                assert predicted["over_sync"] == 1
                assert predicted["hits"] == predicted["misses"] == 0
            else:
                assert predicted["hits"] + predicted["misses"] > 0


def test_how_much_slower_a_pass_is_beside_the_drafter_is_found_from_its_rounds():
    from schedule_predicted import message, slower

    class Alike(Costs):
        def verify(self, nodes, context, batch=1):
            return 0.1

        def draft(self, rows, width):
            return None

    tree, costs = TokenTree.root(1), Alike()

    def one(took, prepared, at=1.0):
        spans = Span("verify", at, at + took), Span("prepare", at, at + prepared), Span("wait", 9.0, 9.0 + took)
        return Round(tree, tree.path(0), tree.tokens, spans=spans, context=10)

    # the drafter works for 0.06 s, in which 0.04 s are done of what takes 0.1 s alone
    assert slower([one(0.12, 0.06), one(0.12, 0.06, at=2.0)], costs) == pytest.approx(1.5)
    assert slower([one(0.1, 0.0)], costs) == 1
    assert slower([one(0.05, 0.05)], costs) == 1
    assert message([one(0.12, 0.06), one(0.02, 0.0)]) == pytest.approx(0.02)
    assert message([]) == 0
