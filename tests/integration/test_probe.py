"""Models whose passes are not what trees need are refused when they are loaded, in a sentence that says why."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import talon_core
from talon_core.decoding import loading
from talon_core.errors import PluginError
from talon_core.hf.experts import experts
from talon_core.hf.probe import STEPS, PlainModel, unlike
from talon_core.runtime import recording
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_core.tree import TokenTree
from talon_tests.tiny_models import ARCHITECTURES, SMALL, tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])


def made(cls: type[LlamaForCausalLM]) -> Any:
    torch.manual_seed(0)
    return cls(LlamaConfig(**SMALL)).eval()


class Shifted(LlamaForCausalLM):
    """Its positions begin at 7 inside `generate`."""

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        return {**inputs, "position_ids": 2 * inputs["position_ids"] + 7}


class Prompted(LlamaForCausalLM):
    """`generate` begins every prompt with a token of the model's own."""

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        if inputs["input_ids"].shape[1] > 1:
            inputs["input_ids"][:, 0] = 3
        return inputs


class Renamed(LlamaForCausalLM):
    """Overrides the method and changes nothing that matters."""

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        inputs.pop("attention_mask", None)
        return inputs


class Steps(LlamaForCausalLM):
    """From the second token on, `generate` gives its single tokens another position."""

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        if inputs["input_ids"].shape[1] == 1:
            inputs["position_ids"] = inputs["position_ids"] + 1
        return inputs


class Forbidding(LlamaForCausalLM):
    """Gives one token the same score after every text."""

    score = -torch.inf

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits[..., 9] = self.score
        return outputs


@pytest.mark.parametrize("score", [-torch.inf, torch.finfo(torch.float32).min])
def test_a_model_that_forbids_a_token_works(score: float) -> None:
    model = made(Forbidding)
    model.score = score
    decoder = talon_core.load(model, drafter="ngram")
    expected = model.generate(PROMPT, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    found = decoder.generate(PROMPT[0], max_new_tokens=12, eos_token_id=None)
    assert list(found.token_ids) == expected[0, PROMPT.shape[1] :].tolist()
    assert 9 not in decoder.generate(PROMPT[0], max_new_tokens=40, temperature=9.0, top_k=4, seed=0).token_ids


@pytest.mark.parametrize("score", [-torch.inf, torch.finfo(torch.float32).min])
def test_a_token_that_is_forbidden_hides_no_other_difference(score: float) -> None:
    plain = torch.tensor([1.0, score, 2.0])
    assert unlike([torch.tensor([1.0, score, 2.0])], [plain], routed=False) is None
    for ours in ([1.0, score, 2.1], [1.0, 0.0, 2.0], [score, score, 2.0], [1.0, torch.nan, 2.0]):
        assert unlike([torch.tensor(ours)], [plain], routed=False) is not None


def test_a_model_whose_logits_are_nan_is_refused() -> None:
    model = made(Forbidding)
    model.score = torch.nan
    with pytest.raises(ValueError, match=r"^Forbidding computes logits that are NaN, without TALON too; "):
        talon_core.load(model, drafter="ngram")


class Broken(LlamaForCausalLM):
    """Raises what it is told to."""

    error: BaseException = KeyError("my\ncode")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error


def test_a_model_that_cannot_compute_is_refused_in_words() -> None:
    mixed = made(LlamaForCausalLM).bfloat16()
    mixed.model.norm.float()
    with pytest.raises(
        ValueError, match=r"^LlamaForCausalLM fails at \d+ tokens, without TALON too \(RuntimeError: .*dtype"
    ):
        talon_core.load(mixed, drafter="ngram")
    with pytest.raises(
        ValueError, match=r"^Broken fails at .* too \(KeyError: 'my\\ncode'\); look at its modules, and at"
    ):
        talon_core.load(made(Broken), drafter="ngram")


@pytest.mark.parametrize(
    "error", [MemoryError("no room"), PluginError("a plugin"), ValueError("a value"), KeyboardInterrupt()]
)
def test_what_is_no_fault_of_a_model_or_says_itself_what_is_wrong_is_told_as_it_is(error: BaseException) -> None:
    model = made(Broken)
    model.error = error
    with pytest.raises(type(error)) as raised:
        talon_core.load(model, drafter="ngram")
    assert raised.value is error


@pytest.mark.parametrize("cls", [Shifted, Prompted, Steps])
def test_a_model_that_generate_feeds_otherwise_is_refused(cls: type[LlamaForCausalLM]) -> None:
    sentence = (
        rf"^{cls.__name__}\.generate does not feed the model a prompt and then token after token \(off by .* at the "
        r"token of depth [01], at most .* is rounding\), as its prepare_inputs_for_generation changes them, and TALON"
    )
    with pytest.raises(ValueError, match=sentence):
        talon_core.load(made(cls), drafter="ngram")


def test_a_model_that_overrides_how_it_is_fed_and_feeds_the_same_works() -> None:
    model = made(Renamed)
    expected = model.generate(PROMPT, max_new_tokens=20, do_sample=False)[0, 8:].tolist()
    assert talon_core.load(model, drafter="ngram").generate(PROMPT, max_new_tokens=20).token_ids == expected


class AloneOtherwise(nn.Module):
    """Gives a token that is alone in its pass another result."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out * 1.5 if x.shape[1] == 1 else out


class ByLength(nn.Module):
    """Scales by the length of the pass."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out * x.shape[1] ** 0.5


@pytest.mark.parametrize("layer", [AloneOtherwise, ByLength])
def test_a_model_whose_result_depends_on_the_length_of_the_pass_is_refused(
    layer: Callable[[nn.Module], nn.Module],
) -> None:
    model = tiny_model("llama")
    model.model.layers[1].mlp = layer(model.model.layers[1].mlp)
    with pytest.raises(ValueError, match=r"gives a token other logits where it is run alone|the logits of plain decod"):
        talon_core.load(model, drafter="ngram")


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "longrope"])
def test_generate_is_asked_for_the_logits_of_every_architecture(architecture: str) -> None:
    if architecture == "longrope":
        rope = {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [8.0] * 6, "rope_theta": 1e4}
        changes: dict[str, Any] = {"original_max_position_embeddings": 64, "rope_parameters": rope}
        model: Any = transformers.Phi3ForCausalLM(transformers.Phi3Config(**{**SMALL, **changes})).eval()
    else:
        model = tiny_model(architecture)
    plain = PlainModel(model)
    text, tokens = np.array([5, 9, 33]), np.array([7])
    logits = plain._generated(text, tokens)
    assert len(logits) == STEPS
    tree = TokenTree(np.array([33, 7]), np.array([-1, 0]), np.zeros(2))
    for row, expected in zip(logits, plain.along_paths(text[:-1], tree).values(), strict=True):
        torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-3)


def test_a_models_own_generation_config_does_not_disturb_the_probe(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("llama")
    model.generation_config.update(
        do_sample=True, temperature=0.3, num_beams=3, max_length=40, repetition_penalty=3.0, stop_strings=["a"]
    )
    assert len(PlainModel(model)._generated(np.array([5, 9, 33]), np.array([7]))) == STEPS
    talon_core.load(model, drafter="ngram")
    assert [record for record in caplog.records if record.name.startswith("transformers")] == []


def test_a_model_whose_generate_fails_is_decoded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")

    def failing(*_: Any, **__: Any) -> Any:
        raise KeyError("pixel_values")

    monkeypatch.setattr(type(model), "_sample", failing)
    assert PlainModel(model)._generated(np.array([5, 9, 33]), np.array([7])) == ()
    assert len(talon_core.load(model, drafter="ngram").generate(PROMPT, max_new_tokens=5).token_ids) == 5


def of_noise(nodes: slice, share: float) -> Callable[..., dict[int, Tensor]]:
    """`along_paths` with the worst token of some nodes made better, by a share of the largest logit."""
    own = PlainModel.along_paths

    def noisy(self: PlainModel, *args: Any) -> dict[int, Tensor]:
        found = own(self, *args)
        for node in sorted(found)[nodes]:
            found[node] = found[node].clone()
            found[node][found[node].argmin()] += share * float(found[node].abs().max())
        return found

    return noisy


@pytest.mark.parametrize(
    ("architecture", "dtype", "nodes", "share", "sound"),
    [
        ("qwen3-moe", torch.bfloat16, slice(2), 0.1, True),  # a token went to another expert
        ("qwen3-moe", torch.bfloat16, slice(1), 9.0, False),  # and chooses another token
        ("qwen3-moe", torch.bfloat16, slice(None), 0.1, False),  # every token is off
        ("qwen3-moe", torch.float32, slice(2), 0.1, False),
        ("llama", torch.bfloat16, slice(2), 0.1, False),
    ],
)
def test_of_a_mixture_of_experts_the_choices_are_compared(
    monkeypatch: pytest.MonkeyPatch, architecture: str, dtype: torch.dtype, nodes: slice, share: float, sound: bool
) -> None:
    monkeypatch.setattr(PlainModel, "along_paths", of_noise(nodes, share))
    model = tiny_model(architecture).to(dtype)
    if sound:
        assert len(talon_core.load(model, drafter="ngram").generate(PROMPT, max_new_tokens=3).token_ids) == 3
    else:
        with pytest.raises(ValueError, match=r"does not give a tree's nodes the logits of plain decoding \(off by"):
            talon_core.load(model, drafter="ngram")


def test_rows_that_nearly_tie_are_alike_where_experts_choose() -> None:
    plain = torch.tensor([4.0, 3.9, 0.0, -4.0], dtype=torch.bfloat16)
    other = torch.tensor([3.9, 4.0, 1.0, -4.0], dtype=torch.bfloat16)  # off by a quarter, and chooses another token
    last = torch.tensor([3.0, 0.0, 4.0, -4.0], dtype=torch.bfloat16)
    assert unlike([plain, other], [plain, plain], routed=True) is None
    assert unlike([plain, other], [plain, plain], routed=False) == (1, 1.0, pytest.approx(0.2))
    assert unlike([plain, last], [plain, plain], routed=True) == (1, 4.0, pytest.approx(0.2))
    assert unlike([plain, other, other], [plain] * 3, routed=True) == (1, 1.0, pytest.approx(0.2))
    assert unlike([plain, plain, torch.nan * plain], [plain] * 3, routed=True) is not None


@pytest.mark.parametrize(("architecture", "count"), [("llama", None), ("mixtral", 4), ("qwen3-moe", 4), ("gpt-oss", 4)])
def test_mixtures_of_experts_are_known(architecture: str, count: int | None) -> None:
    assert experts(tiny_model(architecture)) == count


@pytest.mark.parametrize(("implementation", "asks"), [("eager", True), ("batched_mm", False)])
def test_experts_that_ask_the_device_are_named_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, implementation: str, asks: bool
) -> None:
    monkeypatch.setattr(loading, "without_graphs", lambda *_: None)
    monkeypatch.setattr(recording, "CudaGraphs", TapeRecorder)
    model = tiny_model("qwen3-moe")
    model.set_experts_implementation(implementation)
    with pytest.warns(RuntimeWarning, match="asks the device") if asks else nullcontext():
        decoder = talon_core.load(model, attention=TapedBackend(PlainDevice()), policy=None, accelerate=False)
    executor = decoder.target.runner.executor  # type: ignore[attr-defined]
    assert (executor.failure is not None) == asks
    assert [said for said in caplog.messages if "set_experts_implementation('batched_mm') never asks" in said] == (
        caplog.messages if asks else []
    )
