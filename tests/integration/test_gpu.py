"""On a GPU: Triton's kernels, captured graphs and batches decode what plain decoding does; skipped in sight elsewhere.

`make gpu` runs these behind the kernels' own tests.
"""

import numpy as np
import pytest
import torch

from talon_core import load
from talon_core.certify.exact import Given
from talon_core.choices import SeededChoices
from talon_core.decoding.decoder import Decoder
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.target import HFTarget
from talon_core.runtime.best import Vocabulary, best_by
from talon_core.runtime.device import executor_for
from talon_core.runtime.draws import take_tokens
from talon_core.runtime.recording import CudaGraphs
from talon_core.target import NodeDraws
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_kernels import TritonAttention
from talon_kernels.fused import fuse
from talon_strategies import Match, Talon
from talon_tests.tiny_models import tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [11], [20, 21, 22, 23, 20, 21], [9, 9, 9], list(range(3, 90))]
WAYS = {
    "plain": (None, "ngram"),
    "ngram": ("talon:budget=8,top_k=3", "ngram"),
    "draft model": ("talon:budget=24,top_k=4", "draft-model:skip=1+2"),
    "conflayers": ("talon:budget=24,top_k=4", "conflayers:context=8,every=8"),
    "lookahead": ("talon:budget=8,top_k=3", "lookahead:window=3,ngram=3"),
}

WARPED = [
    {"temperature": 0.8},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 0, "min_p": 0.02, "typical_p": 0.95},
]


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
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3", "gpt2", "qwen3", "mistral-window"])
def test_the_output_is_plain_greedy_decoding(exact, architecture, way, graphs):
    model = on_gpu(architecture)
    policy, drafter = WAYS[way]
    decoder = load(model, policy=policy, drafter=drafter, graphs=graphs)
    assert decoder.target.attention.name == "triton"
    together = decoder.generate(PROMPTS, max_new_tokens=60)
    for prompt, result in zip(PROMPTS, together, strict=True):
        ids = torch.tensor([prompt], device="cuda")
        config = {"do_sample": False, "max_new_tokens": 60, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **config)[0, len(prompt) :].tolist()
        assert decoder.generate(prompt, max_new_tokens=60).token_ids == expected
        assert result.token_ids == expected
    assert decoder.target.runner.executor.failure is None


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3", "phi", "cohere"])
def test_with_fused_layers_the_output_is_plain_greedy_decoding(exact, architecture, graphs):
    model = on_gpu(architecture)
    decoder = load(model, policy=WAYS["ngram"][0], drafter="ngram", graphs=graphs, accelerate="triton")
    assert fuse(model).summary()["attention"] == model.config.num_hidden_layers
    for prompt in PROMPTS:
        ids = torch.tensor([prompt], device="cuda")
        config = {"do_sample": False, "max_new_tokens": 30, "pad_token_id": 0}
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **config)[0, len(prompt) :].tolist()
        assert decoder.generate(prompt, max_new_tokens=30).token_ids == expected
    assert decoder.target.runner.executor.failure is None


def test_a_model_that_asks_its_device_for_something_is_decoded_without_graphs(exact):
    """What is found out must leave nothing behind."""
    model = on_gpu("llama")
    model.model.layers[1].register_forward_hook(lambda _module, _args, out: out * float(out.abs().max() >= 0))
    before = torch.cuda.current_stream()
    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        decoder = load(model, drafter="ngram")
    ids = torch.tensor([PROMPTS[0]], device="cuda")
    config = {"do_sample": False, "max_new_tokens": 40, "pad_token_id": 0}
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), **config)[0, len(PROMPTS[0]) :].tolist()
    assert decoder.generate(PROMPTS[0], max_new_tokens=40).token_ids == expected
    assert torch.cuda.current_stream() == before
    torch.rand(1, device="cuda")
    torch.cuda.empty_cache()
    llama = load(on_gpu("llama"), drafter="ngram")
    llama.generate(PROMPTS[0], max_new_tokens=10)
    assert llama.target.runner.executor.failure is None


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


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("warped", WARPED)
def test_what_a_gpu_draws_is_what_the_rule_draws(exact, warped, graphs):
    decoder = load(on_gpu("llama"), policy="talon:budget=8,top_k=3", drafter="ngram", graphs=graphs)
    options = {"max_new_tokens": 40, "do_sample": True, "seed": 5, **warped}
    found = decoder.generate(PROMPTS, **options)
    assert {(one.laws_on_host, one.on_host) for result in found for one in result.rounds} == {(0, None)}
    decoder.target.can_draw = False
    host = Decoder(decoder.target, decoder.rule, decoder.policy, decoder.drafter_spec, decoder.frontend)
    expected = host.generate(PROMPTS, **options)
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    assert all(one.laws_on_host == len(one.path) for result in expected for one in result.rounds)


@pytest.mark.parametrize("warped", WARPED)
def test_drawing_waits_for_nothing_and_inverts_the_same_law_as_the_host(warped):
    torch.manual_seed(0)
    logits, numbers = torch.randn(9, 49_152) * 3, SeededChoices(1).ahead(9)
    request = HFFrontend(tiny_model("llama")).request(np.array([1]), {"do_sample": True, **warped})
    draws = NodeDraws(request.sampling.processors, frozenset(), numbers)
    there, to_draw_with = logits.cuda(), torch.from_numpy(numbers).cuda()
    take_tokens(there, draws, to_draw_with)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens = take_tokens(there, draws, to_draw_with)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    scores = logits
    for warp in request.sampling.processors:
        scores = warp(torch.empty((9, 0), dtype=torch.int64), scores)
    choices = SeededChoices(1)
    assert tokens.tolist() == [choices.pick(torch.softmax(row.double(), dim=-1).numpy()) for row in scores]


def test_no_kernel_is_compiled_anew_when_lengths_change(exact):
    import triton

    # plain decoding: passes of one size, texts of any
    decoder = load(on_gpu("llama"), policy=None, graphs=False)
    compiled = []
    before = triton.knobs.runtime.jit_cache_hook
    decoder.generate(PROMPTS[0], max_new_tokens=4)
    triton.knobs.runtime.jit_cache_hook = lambda **of: compiled.append(of["fn"].name) and None
    try:
        for prompt in PROMPTS:
            decoder.generate(prompt, max_new_tokens=40)
    finally:
        triton.knobs.runtime.jit_cache_hook = before
    assert compiled == []


def test_passes_are_recorded_again_when_all_that_were_are_given_up():
    recorder = CudaGraphs()
    given, weight, seen = torch.zeros(3, device="cuda"), 2 * torch.eye(3, device="cuda"), []

    def work():
        seen.append(1)
        return weight @ given

    for again in range(1, 4):
        out, repeat = recorder.record(work)
        for value in (1.0, 5.0):
            given.fill_(value)
            repeat()
            assert out.tolist() == [2 * value] * 3
        assert len(seen) == 3 * again  # two calls before it, and the recorded one
        del out, repeat


def test_a_heads_layers_are_recorded_too(exact):
    """An EAGLE-3 head of random weights drafts the same trees with and without graphs, across growing buffers."""
    torch.manual_seed(1)
    model = on_gpu("llama")
    head = Eagle3Head(Eagle3Config(model.config, 48, 97)).to("cuda")
    results = []
    for graphs in (CudaGraphs, None):
        target = HFTarget(model, TritonAttention(), None, (1, 2, 4), graphs=graphs)
        embed = model.get_input_embeddings()
        drafter = FeatureDrafter(head, embed, target.vocab_size, target.executor())
        decoder = Decoder(target, Match(), Talon(budget=40, top_k=6), Given(drafter), HFFrontend(model))
        results.append(decoder.generate(PROMPTS, max_new_tokens=50))
        assert drafter.executor.failure is None
    for one, other in zip(*results, strict=True):
        assert one.token_ids == other.token_ids
        assert [len(of.tree) for of in one.rounds] == [len(of.tree) for of in other.rounds]


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


def test_calls_are_recorded_and_what_they_find_can_be_kept(exact):
    """What heads without a cache do, in any number of rows."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 300, device="cuda").requires_grad_(False)
    executor = executor_for(TritonAttention(), torch.device("cuda"), CudaGraphs())
    with torch.inference_mode():
        for rows in (1, 3, 4, 33):
            first, second = torch.randn(2, rows, 64, device="cuda")
            kept = best_by(executor, "layer", layer, (first,), 5, Vocabulary(300))
            again = best_by(executor, "layer", layer, (second,), 5, Vocabulary(300))
            for found, states in ((kept, first), (again, second)):
                expected = torch.softmax(layer(states).double(), -1).cpu().numpy()
                assert found.tokens[:, 0].tolist() == expected.argmax(-1).tolist()
                np.testing.assert_allclose(found.law(rows - 1), expected[rows - 1], atol=1e-5)
    assert executor.failure is None
