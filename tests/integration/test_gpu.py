"""On a GPU: Triton's kernels, captured graphs and batches decode what plain decoding does; skipped in sight elsewhere.

`make gpu` runs these and the kernels' own tests.
"""

import numpy as np
import pytest
import torch

from talon_core import load
from talon_core.hf.device import CudaGraphs
from talon_core.testing.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [11], [20, 21, 22, 23, 20, 21], [9, 9, 9], list(range(3, 90))]
WAYS = {
    "plain": (None, "ngram"),
    "ngram": ("talon:budget=8,top_k=3", "ngram"),
    "draft model": ("talon:budget=24,top_k=4", "draft-model:skip=1+2"),
}


@pytest.fixture
def exact():
    """Matrix products in true float32, as the comparison is of tokens that near ties decide."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def on_gpu(architecture):
    return tiny_model(architecture).to("cuda")


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("way", ["plain", "ngram", "draft model"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3", "gpt-oss", "gpt2", "qwen3", "mistral-window"])
def test_the_output_is_plain_greedy_decoding(exact, architecture, way, graphs):
    model = on_gpu(architecture)
    policy, drafter = WAYS[way]
    decoder = load(model, policy=policy, drafter=drafter, graphs=graphs)
    assert decoder.target.attention.name == "triton"
    assert decoder.target.runner.not_recorded is None
    together = decoder.generate(PROMPTS, max_new_tokens=60)
    for prompt, result in zip(PROMPTS, together, strict=True):
        ids = torch.tensor([prompt], device="cuda")
        config = {"do_sample": False, "max_new_tokens": 60, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **config)[0, len(prompt) :].tolist()
        assert decoder.generate(prompt, max_new_tokens=60).token_ids == expected
        assert result.token_ids == expected


@pytest.mark.parametrize("attention", ["sdpa", "reference"])
def test_another_backend_can_be_asked_for(exact, attention):
    model = on_gpu("llama")
    decoder = load(model, drafter="ngram", attention=attention)
    expected = load(model, policy=None).generate(PROMPTS[0], max_new_tokens=30).token_ids
    assert decoder.target.attention.name == attention
    assert decoder.generate(PROMPTS[0], max_new_tokens=30).token_ids == expected


def test_sampling_draws_the_same_with_and_without_graphs(exact):
    model = on_gpu("llama")
    options = {"max_new_tokens": 40, "do_sample": True, "seed": 5}
    one, other = (load(model, drafter="ngram", graphs=graphs).generate(PROMPTS, **options) for graphs in (True, False))
    assert [result.token_ids for result in one] == [result.token_ids for result in other]


def test_no_kernel_is_compiled_anew_when_lengths_change(exact):
    import triton

    decoder = load(on_gpu("llama"), drafter="ngram", graphs=False)
    compiled = []
    before = triton.knobs.runtime.jit_cache_hook
    decoder.generate(PROMPTS, max_new_tokens=40)
    triton.knobs.runtime.jit_cache_hook = lambda **of: compiled.append(of["fn"].name) and None
    try:
        decoder.generate([prompt[::-1] * 2 for prompt in PROMPTS], max_new_tokens=40)
    finally:
        triton.knobs.runtime.jit_cache_hook = before
    assert compiled == []


def test_a_recorded_pass_is_repeated():
    recorder = CudaGraphs()
    given, seen = torch.zeros(3, device="cuda"), []

    def work():
        seen.append(1)
        return given * 2

    out, repeat = recorder.record(work)
    for value in (1.0, 5.0):
        given.fill_(value)
        repeat()
        assert out.tolist() == [2 * value] * 3
    assert len(seen) == 3  # two calls before it, and the recorded one


@pytest.mark.models
def test_bfloat16_differs_at_near_ties_only(exact):
    """SmolLM2 with its shipped drafter: where outputs differ, the two best logits are within rounding of each other."""
    decoder = load("smollm2-135m", dtype=torch.bfloat16)
    plain = load(decoder.target.model, tokenizer=decoder.target.tokenizer, policy=None)
    prompt = "Write a short story about a lighthouse keeper."
    one, other = decoder.generate(prompt, max_new_tokens=120), plain.generate(prompt, max_new_tokens=120)
    differ = np.flatnonzero(np.array(one.token_ids) != np.array(other.token_ids))
    if len(differ):
        ids = [*one.prompt_ids.tolist(), *one.token_ids[: int(differ[0])]]
        with torch.inference_mode():
            logits = decoder.target.model(torch.tensor([ids], device="cuda")).logits[0, -1].float()
        best, second = logits.topk(2).values.tolist()
        assert best - second <= 2**-7 * abs(best)  # bfloat16 has 8 bits
