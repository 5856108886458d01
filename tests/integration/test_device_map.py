"""A model whose layers are on two GPUs: what decodes it, and that no operation of a pass meets tensors of both."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import talon_core
from talon_core import TokenTree
from talon_core.attention import AttentionBackend
from talon_core.hf import checks
from talon_core.hf.runner import ModelRunner
from talon_core.hf.target import BackendError, HFTarget
from talon_core.runtime.device import executor_for
from talon_core.runtime.embeddings import shared_embedding, shared_output
from talon_core.testing.plain_device import PlainDevice
from talon_kernels import NativeAttention, SdpaAttention
from talon_tests.tiny_models import tiny_model
from talon_tests.two_devices import FIRST, SECOND, place, two_devices

TREE = TokenTree([3, 1, 2, 4], [-1, 0, 0, 1], np.zeros(4))


@pytest.fixture(params=["llama", "mistral-window", "gemma2"])
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model with two layers on each of two devices, and the LM head on the second."""
    model = tiny_model(request.param, tie_word_embeddings=False)
    parts = {f"model.layers.{layer}": (FIRST, SECOND)[layer // 2] for layer in range(4)}
    with two_devices(monkeypatch):
        place(model, {**parts, "model.norm": SECOND, "lm_head": SECOND})
        yield model


def test_tensors_of_two_devices_do_not_go_together(split: Any) -> None:
    with pytest.raises(RuntimeError, match="found at least two devices"):
        split.model.embed_tokens.weight + split.lm_head.weight


def test_passes_over_prompts_and_trees_stay_on_each_layers_device(split: Any) -> None:
    runner = ModelRunner(split, executor_for(SdpaAttention(), split.device), features=(1, 4))
    with runner.session():
        for slot in (0, 1):
            runner.open(slot, 40)
        for _ in range(2):  # the second part of a prompt needs a mask
            read = runner.read({slot: np.arange(1, 6) for slot in (0, 1)})
        for _ in range(2):
            runner.run({0: (TREE, 0), 1: (TREE, 0)})
            runner.commit({0: np.array([0, 1, 3]), 1: np.array([0])})
        ran = runner.run({1: (TREE, 0)})
        runner.resume(0, 40, 1, 8)
    assert ran.features is not None
    assert read[0] is not None
    assert {read[0].device, ran.logits.device, ran.features.device} == {FIRST}
    assert ran.logits.shape == (4, 97)
    assert {buffer.device for buffer in runner.cache.buffers()} == {FIRST, SECOND}


def test_what_a_drafter_shares_must_be_on_the_first_layers_device(split: Any) -> None:
    assert shared_embedding(split)(torch.zeros(2, dtype=torch.int64, device=FIRST)).device == FIRST
    with pytest.raises(ValueError, match="output layer is on cuda:1, and its first layer on cuda:0; a drafter"):
        shared_output(split)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Every model is said to be on two devices, the first of which is a CPU."""
    devices = [torch.device("cpu"), SECOND]
    monkeypatch.setattr(checks, "devices_of", lambda model: devices)
    return devices


class Single(PlainDevice):
    """For the host alone."""

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None if device.type == "cpu" else "no"


@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (
            Single(),
            r"is on 2 devices \(cpu, cuda:1\), and attention backend 'plain-device' cannot be used on cuda:1: no",
        ),
        (NativeAttention(), r"is on 2 devices .* backend 'native' cannot be used on cuda:1: it runs on the CPU"),
    ],
)
def test_a_backend_for_one_device_is_refused_where_it_was_asked_for(
    two: list[torch.device], attention: AttentionBackend, why: str
) -> None:
    if attention.unavailable(two[0], torch.float32) is not None:
        pytest.skip("no C compiler here")
    with pytest.raises(BackendError, match=why):
        HFTarget(tiny_model("llama"), attention)
    with pytest.raises(ValueError, match=why):
        talon_core.load(tiny_model("llama"), attention=attention, policy=None)


def test_sdpa_takes_its_place_and_a_warning_says_why(two: list[torch.device], caplog: pytest.LogCaptureFixture) -> None:
    decoder = talon_core.load(tiny_model("llama"), policy=None)
    assert decoder.target.attention.name == "sdpa"  # type: ignore[attr-defined]
    if NativeAttention().unavailable(two[0], torch.float32) is None:
        (said,) = caplog.messages
        assert said.startswith("attention backend 'sdpa' takes the place of 'native': LlamaForCausalLM is on 2 devices")
    assert decoder.generate([5, 6, 7], max_new_tokens=4).token_ids == (
        tiny_model("llama").generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)[0, 3:].tolist()
    )
