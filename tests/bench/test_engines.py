"""What counts of what something else has decoded."""

import time

import numpy as np
import pytest

from talon_core.bench.engines import counted, engine_of
from talon_core.decoding.loading import decoder_for_model
from talon_core.plugins.parts import Parts
from talon_core.request import Request
from talon_tests.tiny_models import tiny_model


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ([5, 6, 7], [5, 6, 7]),
        ([5, 6, 7, 8, 9], [5, 6, 7, 8]),  # beyond the limit
        ([5, 2, 7], [5, 2]),  # beyond the end of the text
        ([2, 2, 2], [2]),
        ([5, 6, 7, 8, 2], [5, 6, 7, 8]),  # the end came too late
        ([5, 3], [5, 3]),
    ],
)
def test_tokens_count_up_to_and_including_the_end_and_never_beyond_the_limit(given, counts):
    assert counted(given, Request(np.arange(3), 4, eos=frozenset([2, 3]))) == counts


def test_seconds_are_those_of_the_whole_call_and_parts_add_up_to_them(monkeypatch):
    decoder = decoder_for_model(tiny_model("llama"), None, Parts(policy="none"))
    generate, preparing = decoder.generate, 0.2

    def slowly(ids, **options):
        time.sleep(preparing)
        return generate(ids, **options)

    monkeypatch.setattr(decoder, "generate", slowly)
    started = time.perf_counter()
    stats = engine_of(decoder)(np.arange(5, 12), {"max_new_tokens": 4}).stats
    assert preparing < stats["seconds"] <= time.perf_counter() - started
    assert stats["tokens_per_second"] == pytest.approx(stats["new_tokens"] / stats["seconds"])
    parts = ("prefill", "draft", "policy", "verify", "accept", "commit", "other")
    assert sum(stats[f"{part}_seconds"] for part in parts) == pytest.approx(stats["seconds"])
