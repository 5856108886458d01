"""The decoder layers of a published head as a transformers configuration, from whatever its `config.json` says."""

import copy
import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from talon_core.errors import is_whole, one_line
from talon_drafters.checkpoints.files import Checkpoint

COPIED = ("hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters")


def norms_features(checkpoint: Checkpoint) -> bool:
    """Whether the first decoder layer norms the target's features, beside the token's embedding, by its tensors' names.

    Published heads that fuse several of the target's states do so; those on its last state alone do not.
    """
    return any(re.match(r"(?:model\.)?midlayer\.", name) or ".hidden_norm." in name for name in checkpoint.tensors)


def layer_config(checkpoint: Checkpoint, fields: Mapping[str, Any], first: str, hidden_size: int) -> Any:
    """What the layers look like; sizes come from the tensors where they say so, flags from their presence.

    RoPE is the file's own (base 10000 where it says nothing), never the target's.

    Returns a transformers configuration of Llama, or of Qwen3 where queries and keys are normed.

    Args:
        checkpoint: the drafter's files.
        fields: the part of the configuration that speaks of the layers.
        first: the prefix of the first layer's tensors, in the file.
        hidden_size: the head's width.

    Raises:
        ValueError: if the number of attention heads is missing or does not fit the tensors, attention has a sliding
            window, or transformers knows no such layers.
    """
    query = checkpoint.tensor(f"{first}self_attn.q_proj.weight", -1, -1)
    key = checkpoint.tensor(f"{first}self_attn.k_proj.weight", -1, query.shape[1])
    gate = checkpoint.tensor(f"{first}mlp.gate_proj.weight", -1, hidden_size)
    heads = fields.get("num_attention_heads")
    if not is_whole(heads) or heads < 1:
        raise checkpoint.error("says no num_attention_heads in its config.json")
    head_dim = fields.get("head_dim") or query.shape[0] // heads
    if query.shape[0] != heads * head_dim or key.shape[0] % head_dim:
        raise checkpoint.error(
            f"has {first}self_attn.q_proj.weight of shape {tuple(query.shape)} and k_proj.weight of "
            f"{tuple(key.shape)}; they do not fit {heads} heads of size {head_dim}"
        )
    if fields.get("use_sliding_window") or "sliding_attention" in (fields.get("layer_types") or ()):
        raise checkpoint.error("has layers with a sliding window, which TALON does not build")
    # copies: transformers writes into what it is given
    options: dict[str, Any] = {name: copy.deepcopy(fields[name]) for name in COPIED if fields.get(name) is not None}
    options.update(
        hidden_size=hidden_size,
        intermediate_size=gate.shape[0],
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=key.shape[0] // head_dim,
        head_dim=head_dim,
        attention_bias=f"{first}self_attn.q_proj.bias" in checkpoint.tensors,
        attention_out_bias=f"{first}self_attn.o_proj.bias" in checkpoint.tensors,
        mlp_bias=f"{first}mlp.gate_proj.bias" in checkpoint.tensors,
    )
    config: Any
    try:
        options["rms_norm_eps"] = float(options.get("rms_norm_eps", 1e-6))
        qwen3 = f"{first}self_attn.q_norm.weight" in checkpoint.tensors
        config = Qwen3Config(**options) if qwen3 else LlamaConfig(**options)
        LlamaRotaryEmbedding(config)  # which finds out what is wrong with RoPE
    except (StrictDataclassError, ValueError, TypeError, LookupError) as error:
        raise checkpoint.error(f"has a config.json that transformers refuses: {one_line(error)}") from error
    return config
