"""SmolLM2 says one text, whatever computes it: from blocks or plain numbers, in C or without, on one thread or two."""

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from talon_core.decoding.decoder import Decoder
from talon_core.defaults import NONE
from talon_core.hf.target import HFTarget
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.runtime.blocks import layers_in_blocks
from talon_kernels.native import load, unavailable
from talon_tests.shared_targets import SharedTargets

pytestmark = [pytest.mark.models, pytest.mark.slow]

TESTS = Path(__file__).parent.parent
NEW_TOKENS = 24
WAYS = {"plain": Parts(policy=NONE), "default": Parts()}
"""Without drafts, and with those of the default policy and drafter."""
THREADS = {"plain": 1, "default": 2}
"""Of each way, where it is decoded once."""

Decodes = Callable[[str, bool], Decoder]


@pytest.fixture(scope="module")
def decoder(smollm: tuple[Any, Any], shared_target: Callable[..., Decoder]) -> Decodes:
    """Decoders by their way, of the model in blocks or of one with plain numbers."""

    own = SharedTargets(drafters=True)  # which ends with these tests

    @cache
    def plain_numbers() -> tuple[Any, Any]:
        loaded = load_model("smollm2-135m", dequantize=True)
        assert not [*layers_in_blocks(loaded[0])]
        return loaded

    def made(way: str, in_blocks: bool = True) -> Decoder:
        return shared_target(*smollm, WAYS[way]) if in_blocks else own.decoder(*plain_numbers(), WAYS[way])

    return made


@pytest.fixture
def said(prompts: list[str]) -> Callable[..., list[int]]:
    """What a decoder says that knows of no text before; with `seen`, the logits of each token are put there."""

    def say(decoder: Decoder, seen: list[torch.Tensor] | None = None) -> list[int]:
        def watch(_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            assert seen is not None
            seen.append(scores.clone())
            return scores

        decoder.engine.forget()
        options = {} if seen is None else {"logits_processor": [watch]}
        tokens = decoder.generate(prompts[1], max_new_tokens=NEW_TOKENS, **options).token_ids
        assert len(tokens) == NEW_TOKENS
        return tokens

    return say


@pytest.fixture(scope="module")
def in_c() -> None:
    """The bits are those of the native kernels; of PyTorch's own they are not promised."""
    if load() is None:
        pytest.skip(f"no native kernels here: {unavailable()}")


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_from_blocks_and_from_what_they_stand_for(
    decoder: Decodes, said: Callable[..., list[int]], way: str
) -> None:
    assert said(decoder(way, False)) == said(decoder(way, True))


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_on_one_thread_and_on_two(
    decoder: Decodes, said: Callable[..., list[int]], threads: Callable[[int], None], way: str
) -> None:
    texts = []
    for number in (1, 2, 1):  # of the first text passes are being recorded
        threads(number)
        texts.append(said(decoder(way, True)))
    assert texts[1:] == texts[:-1]
    target = decoder(way, True).target
    assert isinstance(target, HFTarget)
    assert target.own_executor().recorded or load() is None


@pytest.mark.usefixtures("in_c")
def test_its_logits_have_the_same_bits_whatever_it_is_computed_from_and_by_how_many_threads(
    decoder: Decodes, said: Callable[..., list[int]], threads: Callable[[int], None]
) -> None:
    expected: list[torch.Tensor] = []
    for in_blocks, number in ((True, 1), (True, 2), (False, 2), (False, 1)):
        threads(number)
        seen: list[torch.Tensor] = []
        tokens = said(decoder("default", in_blocks), seen)
        logits = seen[: len(tokens)]
        expected = expected or logits
        assert all(torch.equal(one, other) for one, other in zip(logits, expected, strict=True))


ALONE = """
import json, sys, torch
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_kernels.native import load, unavailable
from talon_tests.shared_targets import SharedTargets

assert load() is None and "TALON_NATIVE=0" in unavailable()
model, shared = load_model("smollm2-135m"), SharedTargets()
prompt, count, ways = json.loads(sys.argv[1])
texts = []
for policy, threads in ways:
    torch.set_num_threads(threads)
    decoder = shared.decoder(*model, Parts(policy=policy))
    texts.append(decoder.generate(prompt, max_new_tokens=count).token_ids)
print(json.dumps(texts))
"""
"""Says what the model says in each way, in a process without native kernels."""


@pytest.mark.usefixtures("in_c")
def test_it_is_the_same_in_a_process_without_native_kernels(
    decoder: Decodes, said: Callable[..., list[int]], prompts: list[str], forked_python: str
) -> None:
    ways = [(WAYS[way].policy, threads) for way, threads in THREADS.items()]
    asked = json.dumps([prompts[1], NEW_TOKENS, ways])
    environment = {**os.environ, "TALON_NATIVE": "0"}
    done = subprocess.run(
        [forked_python, "-c", ALONE, asked], env=environment, cwd=TESTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == len(WAYS) * [said(decoder("plain", True))]
