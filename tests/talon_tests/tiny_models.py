"""Tiny random models of many architectures: they say nothing sensible, but they run in milliseconds."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GPT2 = {
    "vocab_size": 97,
    "n_embd": 48,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.3,
    "eos_token_id": None,
}
WINDOW = {"sliding_window": 12}
HEADS = {"head_dim": 20}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
"""Key heads of 20, value heads of 12."""
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", HEADS),
    "mistral-window": ("MistralConfig", WINDOW),
    "gemma2": ("Gemma2Config", {**HEADS, **WINDOW, "query_pre_attn_scalar": 20}),
    "gemma3": ("Gemma3TextConfig", {**HEADS, **WINDOW, "query_pre_attn_scalar": 20}),
    "phi3": ("Phi3Config", {}),
    "gpt2": ("GPT2Config", GPT2),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "mixtral": ("MixtralConfig", {**EXPERTS, "sliding_window": None}),
    "qwen3-moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, **HEADS}),
    "gpt-oss": ("GptOssConfig", {**EXPERTS, **HEADS, **WINDOW}),
    "opt": (
        "OPTConfig",
        {"hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 4, "num_attention_heads": 4, "word_embed_proj_dim": 48},
    ),
    "phi": ("PhiConfig", {}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": None}),
    "cohere": ("CohereConfig", {}),
    "granite": ("GraniteConfig", {}),
    "smollm3": ("SmolLM3Config", {}),
    "deepseek-v3": ("DeepseekV3Config", DEEPSEEK),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "nemotron": ("NemotronConfig", {}),
}


def tiny_model(architecture: str, seed: int = 0, **more: Any) -> Any:
    """A random causal LM of four small layers, float32, 97 token ids.

    Args:
        architecture: a key of `ARCHITECTURES`.
        seed: of its weights.
        more: entries of its config, in the place of those that it has.
    """
    name, changes = ARCHITECTURES[architecture]
    base = {} if architecture == "gpt2" else SMALL
    config = getattr(transformers, name)(**{**base, **changes, **more})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@cache
def tiny_llama() -> Any:
    """`tiny_model("llama")`, always the same one: nobody changes it."""
    return tiny_model("llama")


def of_words(**config: Any) -> tuple[Any, Any]:
    """A tiny Llama and a tokenizer of words; its heads are such that its passes are recorded, as most models' are."""
    model = tiny_model("llama", **{"head_dim": 16, **config})
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(model.vocab_size)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return model, PreTrainedTokenizerFast(tokenizer_object=words)


def two_sets(folder: Path) -> Path:
    """Writes two prompt sets of these words, of three prompts and of one, and gives the folder back."""
    lines = [json.dumps({"turns": [text]}) for text in ("t5 t6 t7", "t8 t9", "t3 t3 t4 t4")]
    (folder / "some.jsonl").write_text("\n".join(lines))
    (folder / "other.jsonl").write_text(lines[1])
    return folder
