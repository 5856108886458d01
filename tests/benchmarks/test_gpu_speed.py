"""The GPU's figures come from a script that nobody may be able to run today; it must work when somebody can."""

import json
import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins.parts import Parts
from talon_tests.interpreter import patch_once
from talon_tests.tiny_models import of_words

SCRIPT = Path(__file__).with_name("gpu_speed.py")


@pytest.mark.slow
@pytest.mark.models
def test_the_script_goes_through_all_its_measurements(smollm, tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from talon_core.models import loading

    out = tmp_path / "figures.json"
    arguments = [str(SCRIPT), "--smoke", "--out", str(out)]
    if os.environ.get(
        "TRITON_INTERPRET"
    ):  # here, where imports, the model, its probes and the interpreter take less time
        patch_once(monkeypatch)
        # Programs of one row each would be most of the work; `test_tree_attention_triton.py` has them of all sizes.
        monkeypatch.setattr(import_module("talon_kernels.tree_attention.triton"), "merged_rows", lambda rows: 16)
        monkeypatch.setattr(loading, "load_model", {"smollm2-135m": smollm}.__getitem__)
        monkeypatch.setattr(sys, "argv", arguments)
        runpy.run_path(str(SCRIPT), run_name="__main__")
    else:  # it may choose the interpreter, before triton is imported
        subprocess.run([sys.executable, *arguments], check=True, timeout=600)
    figures = json.loads(out.read_text())
    assert figures["manifest"]["smoke"] is True
    (attention,) = figures["attention"]
    assert attention["triton_microseconds"] > 0
    assert figures["model"]["verify_over_step"] > 0
    assert figures["model"]["draft_over_step"] > 0
    assert [row["warped"] for row in figures["drawing"]] == ["temperature", "top-p", "top-k and top-p"]
    assert all(row["host_over_device"] > 0 for row in figures["drawing"] + figures["testing"])
    assert [row["rule"] for row in figures["testing"]] == ["rrsw", "traversal"]
    assert [*figures["schedules"]["ways"]][:3] == ["sync", "cached:budget=8 on thread", "pearl on thread"]
    assert not figures["schedules"]["texts_differ"]
    assert [row["batch"] for row in figures["batches"]] == [1, 2]
    assert [row["method"] for row in figures["accelerators"]] == ["plain", "fast"]
    assert all(row["without_tokens_per_second"] > 0 and row["ratio"] > 0 for row in figures["accelerators"])


def test_whole_texts_are_timed_with_their_prompts(read, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke"])
    script = runpy.run_path(str(SCRIPT), run_name="gpu_speed")
    script["main"].__globals__["PROMPT"] = "t5 " * 12
    (model, tokenizer), parts = of_words(), Parts("ngram", "chain:length=2")
    bench = script["Bench"](script["SMOKE"])
    bench.accelerator(model, tokenizer, "fast", parts)
    assert read.count(11) == 4  # two ways, each of which warms up once; a round begins with the last token
    host = script["drawing_on_the_host"](decoder_for_model(model, tokenizer, parts))
    read.clear()
    for _ in range(2):
        host.generate(np.arange(12), max_new_tokens=2)
    assert read == [11, 11]
