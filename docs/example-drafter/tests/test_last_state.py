import pytest
import torch
from talon_last_state import LastState
from talon_last_state.network import Head, save_head
from transformers import LlamaConfig, LlamaForCausalLM

import talon_core

PROMPT = "Give me three reasons to plant trees."


def test_it_keeps_the_contract_of_drafters(talon_check_drafter, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1}
    config = LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=11, initializer_range=0.4, max_position_embeddings=64)
    model = LlamaForCausalLM(config).double().eval()
    save_head(
        Head(24, width=16, heads=2, depth=4), torch.tensor([0, 2, 3, 5, 7, 8, 10]), tmp_path / "random.safetensors"
    )
    drafter = LastState(path=str(tmp_path / "random.safetensors"))
    talon_check_drafter(drafter, talon_core.load(model, drafter=drafter).target, max_examples=10)


@pytest.fixture(scope="module")
def plain():
    return talon_core.load("smollm2-135m", policy=None)


def test_what_it_drafts_is_accepted_and_changes_nothing(plain):
    model, tokenizer = plain.target.model, plain.target.tokenizer
    drafted = talon_core.load(model, drafter=LastState(), policy="talon:budget=12", tokenizer=tokenizer)
    result = drafted.generate(PROMPT, max_new_tokens=48)
    assert result.token_ids == plain.generate(PROMPT, max_new_tokens=48).token_ids
    assert result.stats.mean_accepted_tokens > 1.3


def test_a_head_for_another_target_is_refused(plain, tmp_path):
    save_head(Head(48), torch.arange(9), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is for targets of hidden size 48 with more than 8 tokens; this one has 576"):
        LastState(path=str(tmp_path / "other.safetensors")).open(plain.target)
