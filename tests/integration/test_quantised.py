"""Models that bitsandbytes and torchao have quantised: decoded as `generate` decodes them, or refused.

`make quantised` installs both in a folder of their own and runs this. They are no part of the usual environment, as
transformers imports torchao with every model where it is there.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM, TorchAoConfig

import talon_core
from talon_core.hf.bits import weight_bits

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])
SHARPER = 3.0
"""Weights are so many times as large as they are drawn, so that no two tokens nearly tie."""


def torchao(name: str) -> TorchAoConfig:
    return TorchAoConfig(getattr(pytest.importorskip("torchao.quantization"), name)())


def bitsandbytes(**options: Any) -> BitsAndBytesConfig:
    pytest.importorskip("bitsandbytes")
    return BitsAndBytesConfig(**options)


DECODED = {
    "torchao, weights in int8": (partial(torchao, "Int8WeightOnlyConfig"), 8),
    "torchao, weights in float8": (partial(torchao, "Float8WeightOnlyConfig"), 8),
    "bitsandbytes, 4 bits": (partial(bitsandbytes, load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32), 4),
}
REFUSED = {
    "torchao, activations in int8": partial(torchao, "Int8DynamicActivationInt8WeightConfig"),
    "bitsandbytes, 8 bits": partial(bitsandbytes, load_in_8bit=True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, **heads))
    for matrix in (one for one in model.parameters() if one.dim() > 1):
        matrix.data.mul_(SHARPER)
    where = tmp_path_factory.mktemp("quantised")
    model.save_pretrained(where)
    return where


def quantised(folder: Path, config: Callable[[], Any]) -> Any:
    given = config()
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=given, dtype=torch.float32).eval()


@pytest.mark.parametrize(("config", "bits"), DECODED.values(), ids=DECODED)
@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1"])
def test_the_text_is_that_of_generate(folder: Path, config: Callable[[], Any], bits: int, drafter: str) -> None:
    model = quantised(folder, config)
    with torch.inference_mode():
        expected = model.generate(PROMPT, max_new_tokens=40, do_sample=False, pad_token_id=0)
    decoder = talon_core.load(model, drafter=drafter, policy="talon:budget=8")
    found = decoder.generate(PROMPT[0].tolist(), max_new_tokens=40)
    assert found.token_ids == expected[0, PROMPT.shape[1] :].tolist()
    assert found.stats.target_passes < 40  # some of what was drafted is accepted
    assert weight_bits(model) == bits


@pytest.mark.parametrize("config", REFUSED.values(), ids=REFUSED)
def test_what_computes_otherwise_with_more_rows_is_refused(folder: Path, config: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="does not give a tree's nodes the logits of plain decoding"):
        talon_core.load(quantised(folder, config), drafter="ngram")
