"""Passes that are recorded once and repeated: the output is the one of plain decoding, whatever the round brings."""

from functools import cache
from importlib import import_module
from itertools import product

import numpy as np
import pytest
import torch

from talon_core import Accepted, load
from talon_core.decoding.decoder import Decoder
from talon_core.engine.slots import FEWEST_SLOTS
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.runtime.device import bucket
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_kernels import TritonAttention
from talon_strategies import Match
from talon_tests.interpreter import guard_buffers, patch_once
from talon_tests.tiny_models import tiny_model

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [11], [20, 21, 22, 23, 20, 21], [9, 9, 9]]
DRAFTERS = {
    "none": (None, None),
    "ngram": ("ngram", "talon:budget=8,top_k=3"),
    "draft model": ("draft-model:skip=1+2", "talon:budget=12,top_k=3"),
}
UNRECORDED = {("llama", "none"), ("gemma2", "draft model"), ("gpt-oss", "ngram"), ("gpt2", "draft model")}
"""Where passes are not recorded: every architecture, and every drafter; the others are the matrix."""

RECORDED = [
    pytest.param(*of, recorded, marks=() if recorded or of in UNRECORDED else pytest.mark.matrix)
    for of in product(["llama", "gemma2", "gpt-oss", "gpt2"], DRAFTERS)
    for recorded in (True, False)
]


def decoder_of(model, drafter, policy, backend=None, recorded=True, probe=True):
    """A decoder whose target and drafter record what they do; and the recorders, in the order of their making."""
    registry, recorders = load_registry(), []

    def recorder():
        recorders.append(TapeRecorder())
        return recorders[-1]

    drafter = build(registry, "drafter", drafter) if drafter else None
    features = drafter.features(model.config.num_hidden_layers) if drafter else ()
    backend, graphs = TapedBackend(backend or PlainDevice()), recorder if recorded else None
    target = HFTarget(model, backend, None, features, graphs=graphs, probe=probe)
    policy = build(registry, "tree policy", policy) if policy else None
    return Decoder(target, Match(), policy, drafter, HFFrontend(model)), recorders


LOOKS_BACK = {"gemma2": {"initializer_range": 0.1, "sliding_window": 4}}
"""What makes a model's text depend on what its sliding windows let it see."""


@cache
def model_and_truth(architecture):
    """A model, and what plain decoding makes of the prompts, one by one."""
    model = tiny_model(architecture, **LOOKS_BACK.get(architecture, {}))
    plain = load(model, policy=None, attention="sdpa" if architecture in ("llama", "gpt2") else "reference")
    return model, [plain.generate(prompt, max_new_tokens=12).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize(("architecture", "what", "recorded"), RECORDED)
def test_recorded_passes_decode_what_plain_passes_decode(architecture, what, recorded):
    model, expected = model_and_truth(architecture)
    probe = what == "none"  # which takes its time: once for each architecture
    decoder, recorders = decoder_of(model, *DRAFTERS[what], recorded=recorded, probe=probe)
    together = decoder.generate(PROMPTS, max_new_tokens=12)
    alone = [decoder.generate(prompt, max_new_tokens=12) for prompt in PROMPTS]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone] == expected
    if recorded:
        every = [together, *([one] for one in alone)]
        verified = sum(max(len(one.rounds) for one in batch) for batch in every)
        drafted = sum(max(one.stats.draft_passes for one in batch) for batch in every)
        assert recorders[0].repeated >= verified > 0  # none is run as it is
        assert [one.repeated >= drafted > 0 for one in recorders[1:]] == [True] * (what == "draft model")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gemma2", "gpt-oss"])
def test_tritons_kernels_decode_what_plain_decoding_does(architecture, monkeypatch):
    """Softcap, sliding windows and sinks among it. The interpreter is slow: it is one round or two of two layers."""
    pytest.importorskip("triton")
    patch_once(monkeypatch)
    guard_buffers(monkeypatch)
    # Programs of one row each would be most of the work; `test_tree_attention_triton.py` has them of all sizes.
    monkeypatch.setattr(import_module("talon_kernels.tree_attention.triton"), "merged_rows", lambda rows: 16)
    model = tiny_model(architecture, num_hidden_layers=2, sliding_window=6)
    assert sorted(model.config.layer_types) == ["full_attention", "sliding_attention"]
    backend = TritonAttention()
    why = backend.unavailable(torch.device("cpu"), torch.float32)
    if why is not None:
        pytest.skip(why)
    decoder, _ = decoder_of(model, "draft-model:skip=1", "talon:budget=5,top_k=2", backend=backend, recorded=False)
    plain = load(model, policy=None, attention="reference")
    for prompt, result in zip(PROMPTS[:2], decoder.generate(PROMPTS[:2], max_new_tokens=3), strict=True):
        assert result.token_ids == plain.generate(prompt, max_new_tokens=3).token_ids
        assert any(len(one.tree) > 1 for one in result.rounds)


def test_a_model_that_asks_its_device_for_something_is_run_without_recording():
    model = tiny_model("llama")

    def ask(_module, _args, out):
        return out * float(out.abs().max() >= 0)

    handle = model.model.layers[1].register_forward_hook(ask)
    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        decoder, (recorder,) = decoder_of(model, *DRAFTERS["ngram"])
    result = decoder.generate(PROMPTS[0], max_new_tokens=12)
    handle.remove()
    assert result.token_ids == load(model, policy=None).generate(PROMPTS[0], max_new_tokens=12).token_ids
    assert recorder.repeated == 0
    assert "asks the device" in decoder.target.runner.executor.failure


def assigned(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0))


def exchanged(model):
    model.model.layers[1].mlp.act_fn = torch.nn.Identity()


def hooked(model):
    model.model.layers[1].register_forward_hook(lambda _module, _args, out: out * -0.5)


@pytest.mark.parametrize("change", [assigned, exchanged, hooked])
def test_what_was_recorded_is_given_up_where_the_model_has_changed(change):
    model = tiny_model("llama")
    decoder, (recorder,) = decoder_of(model, *DRAFTERS["ngram"])
    for _ in range(FEWEST_SLOTS):  # the texts of these are kept, so the cache grows
        before = decoder.generate(PROMPTS[0], max_new_tokens=12).token_ids
    recorded = recorder.recorded
    assert decoder.generate(PROMPTS[0], max_new_tokens=12).token_ids == before
    assert recorder.recorded == recorded > 0
    change(model)
    expected = load(model, policy=None).generate(PROMPTS[0], max_new_tokens=12).token_ids
    assert decoder.generate(PROMPTS[0], max_new_tokens=12).token_ids == expected != before


def test_what_was_recorded_is_given_up_where_the_same_numbers_are_elsewhere():
    """A graph would go on with the memory where they were, whatever comes to stand there."""
    model = tiny_model("llama")
    decoder, (recorder,) = decoder_of(model, *DRAFTERS["none"], probe=False)
    before, recorded = decoder.generate(PROMPTS[0], max_new_tokens=4).token_ids, recorder.recorded
    weight = model.model.layers[1].mlp.up_proj.weight
    weight.data = weight.data.clone()
    assert decoder.generate(PROMPTS[0], max_new_tokens=4).token_ids == before
    assert recorder.recorded == 2 * recorded > 0


class WrongForMany(PlainDevice):
    """Wrong where a sequence has more than eight queries, as a kernel may be whose larger tiles are."""

    def attend_packed(self, query, key, value, layout, **options):
        out = super().attend_packed(query, key, value, layout, **options)
        return out if layout.most <= 8 else 1.5 * out


def test_a_backend_that_is_wrong_for_large_trees_alone_is_found_where_they_will_come():
    model = tiny_model("llama")
    HFTarget(model, WrongForMany(), nodes=8)
    with pytest.raises(ValueError, match="the logits of plain decoding"):
        HFTarget(model, WrongForMany(), nodes=60)


def test_a_session_makes_the_models_own_gpu_the_current_one(monkeypatch):
    """Streams, and what is captured in them, are those of the current GPU."""
    runner = HFTarget(tiny_model("llama"), PlainDevice(), probe=False).runner
    runner.device = torch.device("cuda:1")
    current = []

    class Entered:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            current.append(self.device)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", Entered)
    session = runner.session()
    for one in session, session.again():
        with one:
            assert current == [runner.device]
        assert not current


def test_what_drafters_have_recorded_is_given_up_as_well():
    """They may share the target's LM head."""
    model = tiny_model("llama")
    target = HFTarget(model, TapedBackend(PlainDevice()), graphs=TapeRecorder)
    executor, states = target.executor(), torch.randn(3, model.config.hidden_size)

    def called():
        with torch.inference_mode(), target.session():
            return executor.call("head", model.lm_head, states)[:3].clone()

    with torch.inference_mode():
        before = model.lm_head(states)
        torch.testing.assert_close(called(), before)
        torch.testing.assert_close(called(), before)
    assigned(model)
    with torch.inference_mode():
        after = model.lm_head(states)
        assert (after - before).abs().max() > 0.1
        torch.testing.assert_close(called(), after)


def test_processors_and_rules_of_ones_own_are_asked_on_a_device_too():
    model = tiny_model("llama")
    decoder, _ = decoder_of(model, *DRAFTERS["ngram"])
    plain = load(model, policy=None)
    options = {"max_new_tokens": 24, "repetition_penalty": 1.8}
    for prompt in PROMPTS:
        expected = plain.generate(prompt, **options).token_ids
        assert decoder.generate(prompt, **options).token_ids == expected
        assert expected != plain.generate(prompt, max_new_tokens=24).token_ids

    class Shy(Match):
        follows_argmax = False

        def walk(self, tree, laws, choices):
            return Accepted(np.array([0]), laws.draw(0, choices))

    decoder.rule = Shy()
    result = decoder.generate(PROMPTS[0], max_new_tokens=12)
    assert result.token_ids == plain.generate(PROMPTS[0], max_new_tokens=12).token_ids
    assert all(len(one.path) == 1 for one in result.rounds)
    assert any(len(one.tree) > 1 for one in result.rounds)


def test_buckets_are_few_and_at_most_as_much_again_is_padding():
    sizes = {count: bucket(count) for count in range(1, 1000)}
    assert all(count <= size < 2 * count for count, size in sizes.items())
    assert all(size <= 1.5 * count for count, size in sizes.items() if count > 32)
    assert sorted(set(sizes.values())) == [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]


@pytest.mark.parametrize("what", ["none", "ngram"])
def test_sampling_goes_through_recorded_passes(what):
    model = tiny_model("llama")
    drafter, policy = DRAFTERS[what]
    plain = load(model, drafter=drafter or "ngram", policy=policy, attention="sdpa")
    decoder, (recorder,) = decoder_of(model, drafter, policy)
    options = {"max_new_tokens": 10, "do_sample": True, "temperature": 0.7, "seed": 3}
    for prompt in PROMPTS:
        assert decoder.generate(prompt, **options).token_ids == plain.generate(prompt, **options).token_ids
    assert recorder.repeated > recorder.recorded > 0


@pytest.mark.parametrize(
    ("policy", "prompts", "options"),
    [
        ("talon-cost", PROMPTS[:1], {}),
        ("talon-cost", PROMPTS, {}),
        (None, PROMPTS, {}),
        ("talon-cost", PROMPTS[:2], {"do_sample": True, "temperature": 0.7, "seed": 3}),
        ("talon-cost", PROMPTS[1:2], {"repetition_penalty": 1.2}),
    ],
    ids=["alone", "batch", "plain", "drawn", "on the host"],
)
def test_no_round_of_the_first_texts_records_a_pass(policy, prompts, options, monkeypatch):
    """With the policy that is the default on a device: passes of each size are recorded before the first round."""
    model = tiny_model("llama", num_hidden_layers=2)
    decoder, (recorder,) = decoder_of(model, "ngram", policy, probe=False)
    said = []

    def verify(*given, **more):
        found = HFTarget.verify(decoder.target, *given, **more)
        said.append((found.prepared, recorder.recorded))
        return found

    monkeypatch.setattr(decoder.target, "verify", verify, raising=False)
    decoder.generate(prompts, max_new_tokens=12, **options)
    assert {prepared for prepared, _ in said} == {False}
    assert {recorded for _, recorded in said} == {recorder.recorded}
    assert 0 < recorder.recorded <= 14  # few, each once
