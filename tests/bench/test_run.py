"""What a run measures: a whole call of each method, its prompt read."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from talon_core.bench.methods import parse_methods
from talon_core.bench.prompts import Prompt, PromptSet
from talon_core.bench.run import Bench
from talon_core.bench.schedule import Plan
from talon_core.hf.target import HFTarget
from talon_core.tree import IntArray
from talon_tests.tiny_models import of_words

BEGIN = "t3 t1 t4 t1 t5 t9 t2 t6"
PROMPTS = (f"{BEGIN} t5 t3", f"{BEGIN} t5", f"{BEGIN} t8 t9 t7 t9")
METHODS = ("none", "ngram/chain:length=2", "draft-model:skip=2/talon:budget=4")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of prompts targets have read, call by call."""
    counts: list[int] = []
    reads: Callable[[HFTarget, Mapping[int, IntArray]], Any] = HFTarget.read

    def counted(target: HFTarget, parts: Mapping[int, IntArray]) -> Any:
        counts.append(sum(map(len, parts.values())))
        return reads(target, parts)

    monkeypatch.setattr(HFTarget, "read", counted)
    return counts


def test_each_method_reads_each_prompt_each_time(read, tmp_path):
    # peers are asked to, and so their time is compared with one in which a prompt was read
    prompts = tuple(Prompt((text,), None) for text in PROMPTS)
    sets = (PromptSet("words", "", "0" * 64, prompts, len(prompts)),)
    plan = Plan("tiny", tuple(parse_methods(METHODS)), sets, 4, raw=True, warmup=1, repetitions=2)
    model, tokenizer = of_words()
    bench = Bench(plan, model, tokenizer)
    read.clear()  # of decoders that were tried out
    results = bench.run(tmp_path / "run")
    lengths = [len(tokenizer(text).input_ids) for text in PROMPTS]
    assert [one.stats["new_tokens"] for one in results.measurements] == [4] * len(METHODS) * len(PROMPTS) * 2
    whole = len(METHODS) * (2 * sum(lengths) + lengths[0])  # the first prompt warms up
    assert sum(read) == whole - len(METHODS) * (2 * len(PROMPTS) + 1)  # but for last tokens, with which rounds begin
