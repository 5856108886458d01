"""Greedy output equals `model.generate`, token for token, on tiny random models of many architectures."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from talon_core.loading import Parts, decoder_for_model
from talon_core.testing.tiny_models import ARCHITECTURES, tiny_model

COMBINATIONS = [
    ("none", "ngram", None),
    ("talon:budget=12,top_k=3,mu=0.1", "ngram", None),
    ("eagle2:budget=10,depth=3,top_k=3", "draft-model:skip=2", None),
    ("talon:budget=14,top_k=4", "draft-model:skip=1", "sdpa"),
    ("static", "draft-model:skip=1-2", "reference"),
]


def plain(model: Any, ids: torch.Tensor, **options: Any) -> list[int]:
    """New tokens of transformers' own greedy decoding."""
    out = model.generate(
        ids[None], attention_mask=torch.ones_like(ids)[None], do_sample=False, pad_token_id=0, **options
    )
    return [int(token) for token in out[0, len(ids) :]]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_is_that_of_generate(architecture: str) -> None:
    model = tiny_model(architecture)
    ids = torch.randint(3, 97, (21,), generator=torch.Generator().manual_seed(5))
    expected = plain(model, ids, max_new_tokens=70)
    penalised = plain(model, ids, max_new_tokens=40, repetition_penalty=1.4, no_repeat_ngram_size=3)
    for policy, drafter, attention in COMBINATIONS:
        if architecture == "gpt-oss" and attention == "sdpa":
            continue
        decoder = decoder_for_model(model, None, Parts(drafter, policy, attention=attention))
        result = decoder.generate(ids, max_new_tokens=70)
        assert result.token_ids == expected, (policy, drafter, attention)
        result = decoder.generate(ids, max_new_tokens=40, repetition_penalty=1.4, no_repeat_ngram_size=3)
        assert result.token_ids == penalised, (policy, drafter, attention)
    assert plain(model, ids, max_new_tokens=70) == expected, "the model is not as it was"


def falcon() -> Any:
    config = transformers.FalconConfig(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4)
    return AutoModelForCausalLM.from_config(config)


def bloom() -> Any:
    return AutoModelForCausalLM.from_config(
        transformers.BloomConfig(vocab_size=97, hidden_size=48, n_layer=2, n_head=4)
    )


def mamba() -> Any:
    return AutoModelForCausalLM.from_config(
        transformers.MambaConfig(vocab_size=97, hidden_size=48, num_hidden_layers=2, state_size=4)
    )


@pytest.mark.parametrize("make", [falcon, bloom, mamba])
def test_a_model_whose_attention_cannot_be_replaced_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"choose another target|cannot verify a tree|only full and sliding-window"):
        decoder_for_model(make(), None, Parts())


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="encoder-decoder"):
        decoder_for_model(transformers.T5ForConditionalGeneration(config), None, Parts())
