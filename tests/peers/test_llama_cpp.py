"""llama.cpp on the weights of a loaded model: what transformers says, token for token."""

import errno
import time

import attrs
import numpy as np
import pytest
import torch

from talon_core.peer import PeerSetting
from talon_core.peers import LlamaCpp
from talon_core.peers.gguf_file import FAMILIES, gguf_of, main_type
from talon_core.peers.llama_cpp import DRAFTS
from talon_core.request import Request
from talon_core.sampling import Sampling
from talon_tests.tiny_gguf import write_gguf
from talon_tests.tiny_models import tiny_model

PROMPT = np.array([5, 17, 3, 88, 41, 9, 23, 64, 7, 11, 52, 30, 29, 6])
TOKENS = 24
GEMMA = {"num_hidden_layers": 7, "use_bidirectional_attention": False}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 16},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
MODELS = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, of version 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, stretched": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma3_text": ("gemma3", GEMMA),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("TALON_CACHE", str(tmp_path))
    return tmp_path / "gguf"


def setting(model, eos=()):
    return PeerSetting(model, None, "tiny", frozenset(eos), 64, torch.get_num_threads())


@torch.inference_mode()
def greedy(model, count=TOKENS):
    """Tokens, each the most likely one after the whole text before it."""
    ids = PROMPT.tolist()
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.fixture
def opened():
    """Opens the peer where it is installed, and closes it."""
    pytest.importorskip("xllamacpp", reason="the extra llama-cpp is not installed")
    engines = []

    def open_(model, peer=None, eos=()):
        engines.append((peer or LlamaCpp()).open(setting(model, eos)))
        return engines[-1]

    yield open_
    for engine in engines:
        engine.close()


def test_every_family_that_is_written_is_compared_here():
    assert {name.partition(",")[0] for name in MODELS} == set(FAMILIES)


@pytest.mark.parametrize("name", MODELS)
def test_every_token_is_the_models_own(opened, name):
    architecture, changes = MODELS[name]
    model = tiny_model(architecture, **changes)
    engine = opened(model)
    answer = engine.decode(Request(PROMPT, TOKENS))
    assert list(answer.token_ids) == greedy(model)
    assert answer.target_passes == TOKENS
    assert (engine.dtype, engine.device, engine.threads) == ("float32", "cpu", torch.get_num_threads())
    again = engine.decode(Request(PROMPT, TOKENS))
    assert (again.token_ids, again.target_passes) == (answer.token_ids, answer.target_passes)


def test_it_tells_how_long_it_has_read_the_prompt(opened):
    engine = opened(tiny_model("llama"))
    begun = time.perf_counter()
    answer = engine.decode(Request(PROMPT, TOKENS))
    assert 0 < answer.prefill_seconds < time.perf_counter() - begun


def test_a_text_ends_with_an_end_token_and_with_nothing_that_looks_like_one(opened):
    model = tiny_model("llama")
    plain = greedy(model)
    end = plain[5]
    tokens = opened(model, eos=[end]).decode(Request(PROMPT, TOKENS, eos=frozenset([end]))).token_ids
    assert list(tokens) == plain[: plain.index(end) + 1]


@pytest.mark.parametrize("draft", [draft for draft in DRAFTS if draft.startswith("ngram-")])
def test_its_own_drafting_changes_nothing(opened, draft):
    model = tiny_model("llama")
    answer = opened(model, LlamaCpp(draft=draft)).decode(Request(PROMPT, TOKENS))
    assert list(answer.token_ids) == greedy(model)
    assert 1 <= answer.target_passes <= TOKENS


def test_weights_in_half_precision_stay_what_they_are(opened):
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        model = tiny_model("llama").to(dtype)
        engine = opened(model)
        assert engine.dtype == name
        assert len(engine.decode(Request(PROMPT, 4)).token_ids) == 4


def test_tokens_are_drawn_at_the_models_temperature(opened):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper

    model = tiny_model("llama")
    engine = opened(model)

    def drawn(seed, *processors):
        return list(engine.decode(Request(PROMPT, 8, Sampling(True, processors), seed=seed)).token_ids)

    assert drawn(1, TemperatureLogitsWarper(1e-4)) == greedy(model, 8)
    assert drawn(1, TemperatureLogitsWarper(50.0), TopKLogitsWarper(1)) == greedy(model, 8)
    assert drawn(3, TemperatureLogitsWarper(50.0)) == drawn(3, TemperatureLogitsWarper(50.0))
    assert len({tuple(drawn(seed, TemperatureLogitsWarper(50.0))) for seed in range(4)}) > 1


def test_what_it_cannot_do_to_scores_is_refused(opened):
    from transformers import RepetitionPenaltyLogitsProcessor

    request = Request(PROMPT, 8, Sampling(False, (RepetitionPenaltyLogitsProcessor(1.1),)))
    with pytest.raises(ValueError, match="RepetitionPenaltyLogitsProcessor is applied to the model's scores"):
        opened(tiny_model("llama")).decode(request)


def test_a_prompt_beyond_its_room_is_refused_in_its_own_words(opened):
    with pytest.raises(ValueError, match="exceeds the available context size"):
        opened(tiny_model("llama")).decode(Request(np.tile(PROMPT, 40), 8))


def test_a_file_of_ones_own_is_taken_as_it_is(opened, tmp_path):
    model = tiny_model("llama")
    file = tmp_path / "own.gguf"
    gguf_of(setting(model)).rename(file)
    answer = opened(tiny_model("llama", seed=1), LlamaCpp(file=str(file))).decode(Request(PROMPT, TOKENS))
    assert list(answer.token_ids) == greedy(model)


def test_a_model_from_a_file_is_given_as_that_file_or_as_its_numbers(opened, tmp_path):
    from talon_core.models.loading import load_model

    file = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    model, _ = load_model(str(file))
    stored = opened(model)
    assert stored.dtype == "q8_0"
    assert len(stored.decode(Request(PROMPT, 4)).token_ids) == 4
    widened = opened(model, LlamaCpp(widened=True))
    assert widened.dtype == "float32"
    assert list(widened.decode(Request(PROMPT, 12)).token_ids) == greedy(model, 12)


def test_a_file_that_is_none_is_refused(tmp_path):
    file = tmp_path / "letter.gguf"
    file.write_text("dear")
    with pytest.raises(ValueError, match=r"letter\.gguf' is no GGUF file that can be read; give another one"):
        main_type(file)


def test_the_file_is_made_once_for_the_same_numbers_and_ends(cache):
    model = tiny_model("llama")
    file = gguf_of(setting(model))
    made = file.stat().st_mtime_ns
    assert gguf_of(setting(tiny_model("llama"))) == file
    assert file.stat().st_mtime_ns == made
    others = {gguf_of(setting(tiny_model("llama", seed=1))), gguf_of(setting(model, eos=[3]))}
    assert len({file, *others}) == 3
    with torch.no_grad():  # the last number of the last weight
        model.lm_head.weight[-1, -1] += 1
    assert gguf_of(setting(model)) not in {file, *others}
    assert {path.suffix for path in cache.iterdir() if path.name != ".lock"} == {".gguf"}


def test_a_full_disk_leaves_nothing_behind(cache, monkeypatch):
    import gguf

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*\.gguf'"):
        gguf_of(setting(tiny_model("llama")))
    assert [path.name for path in cache.iterdir() if path.name != ".lock"] == []


@pytest.mark.parametrize(
    ("architecture", "changes", "sentence"),
    [
        ("gpt2", {}, "TALON writes no GGUF file of a model of type 'gpt2', only of llama, qwen2, qwen3, gemma3_text"),
        ("qwen2", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "the kind 'linear'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "the kind 'dynamic'",
        ),
        ("qwen2", {"use_sliding_window": True}, "the model attends to a sliding window"),
        ("gemma3", {"num_hidden_layers": 7, "query_pre_attn_scalar": 21}, "no Gemma 3 as llama.cpp has it"),
        ("llama", {"attention_bias": True, "mlp_bias": True}, None),
    ],
)
def test_models_that_it_would_run_wrongly_are_refused(opened, architecture, changes, sentence):
    model = tiny_model(architecture, **changes)
    if sentence is None:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        assert list(opened(model).decode(Request(PROMPT, TOKENS)).token_ids) == greedy(model)
        return
    with pytest.raises(ValueError, match=sentence):
        gguf_of(setting(model))


def test_options_are_checked_before_anything_is_loaded():
    assert attrs.asdict(LlamaCpp()) == {
        **{"file": "", "widened": False, "draft": "none", "draft_file": "", "head": "eagle3"},
        **{"tokens": 3, "confidence": 0.0},
    }
    with pytest.raises(ValueError, match="'draft' must be in"):
        LlamaCpp(draft="magic")
