"""The script that times whole texts on a CPU counts the same of every method."""

import runpy
import time
from pathlib import Path

from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins.parts import Parts
from talon_tests.tiny_models import of_words

SCRIPT = Path(__file__).with_name("cpu_speed.py")
TOKENS, PREPARING = 4, 0.2


def slowed(given, generate):
    """The same, which notes the prompts and takes a while before it begins."""

    def call(ids, **options):
        if "custom_generate" not in options:  # by which requests are prepared
            given.append(ids.flatten().tolist())
            time.sleep(PREPARING)
        return generate(ids, **options)

    return call


def test_the_whole_call_counts_for_every_method_and_all_are_given_the_same_tokens(monkeypatch):
    script, given = runpy.run_path(str(SCRIPT), run_name="cpu_speed"), []
    monkeypatch.setitem(script["main"].__globals__, "PROMPTS", {"one": "t5 t6 t7 t5 t6"})
    model, tokenizer = of_words()
    decoders = [decoder_for_model(model, tokenizer, parts) for parts in (Parts(policy="none"), Parts("ngram"))]
    for slow in (model, *decoders):
        monkeypatch.setattr(slow, "generate", slowed(given, slow.generate))
    found = script["_decoding"](model, decoders[0], {"ngram": decoders[1]}, 1, TOKENS)["one"]
    assert found["identical_output"]
    assert found["new_tokens"] == TOKENS
    assert all(0 < speed < TOKENS / PREPARING for speed in found["tokens_per_second"].values())
    assert all(share > 0 for share in found["outside_target"].values())
    assert given == [[5, 6, 7, 5, 6]] * 6
