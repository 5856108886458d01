"""GGUF files of every architecture that transformers reads tensor by tensor."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers import modeling_gguf_pytorch_utils as theirs

from talon_core.decoding.loading import decoder_for_model
from talon_core.models.gguf_weights import said_one_by_one
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.runtime.blocks import layers_in_blocks
from talon_tests.gguf_architectures import ARCHITECTURES, write_architecture

PROMPT = torch.arange(40)[None] * 3 % 250

NOT_HERE = {
    "general": "no architecture",
    "tokenizer": "no architecture",
    "t5": "an encoder-decoder",
    "umt5": "an encoder-decoder",
    "deci": "transformers has no model of it",
    "gpt_oss": "transformers does not find its experts",
    "mistral": "its files say that they are of `llama`",
}
"""What transformers lists, and why no file of it is written here."""


@pytest.fixture(scope="module", params=ARCHITECTURES)
def both(request, tmp_path_factory):
    """Our model of a file, and the one that transformers makes of it."""
    path = write_architecture(tmp_path_factory.mktemp("gguf") / "tiny.gguf", request.param)
    plain = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    return ARCHITECTURES[request.param], load_model(str(path))[0], plain


def test_every_architecture_that_transformers_lists_is_tried():
    listed = {name.replace("_", "-") for name in theirs.GGUF_SUPPORTED_ARCHITECTURES if name not in NOT_HERE}
    tried = {one.model_type.removesuffix("_text").replace("_", "-") for one in ARCHITECTURES.values()}
    assert {name for name in listed if said_one_by_one(name)} == tried


def test_the_numbers_are_those_of_transformers(both):
    one, model, plain = both
    assert model.config.model_type == one.model_type
    assert len([*layers_in_blocks(model)]) == one.in_blocks
    with torch.inference_mode():
        assert torch.equal(model(PROMPT).logits, plain(PROMPT).logits)


def test_greedy_text_is_that_of_transformers(both):
    one, model, plain = both
    parts = Parts(drafter="ngram", policy="chain:length=3")
    if one.refused:
        with pytest.raises(ValueError, match=one.refused):
            decoder_for_model(model, None, parts)
        return
    options = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}
    expected = plain.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **options)[0, PROMPT.shape[1] :]
    found = decoder_for_model(model, None, parts).generate(PROMPT[0].tolist(), max_new_tokens=24, min_new_tokens=24)
    assert found.token_ids == expected.tolist()
