"""A trained head as a GGUF file of llama.cpp's architecture `eagle3`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from talon_core.heads import HeadWeights
from talon_core.models.gguf_header import GgufHeader
from talon_core.peer import PeerSetting
from talon_core.peers.gguf_writing import (
    digest_of,
    made_once,
    pairs_beside,
    rope_factors,
    write_settings,
    write_vocabulary,
    write_weight,
    written_at,
)

if TYPE_CHECKING:
    from torch import Tensor

FORM = 1
"""Of the files that are written here; another form is another file."""

ARCH = "eagle3"
LAYER = "layers.0."
NAMES = {
    "fc.weight": "fc.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    f"{LAYER}input_layernorm.weight": "blk.0.attn_norm.weight",
    f"{LAYER}hidden_norm.weight": "blk.0.attn_norm_2.weight",
    f"{LAYER}self_attn.q_proj.weight": "blk.0.attn_q.weight",
    f"{LAYER}self_attn.k_proj.weight": "blk.0.attn_k.weight",
    f"{LAYER}self_attn.v_proj.weight": "blk.0.attn_v.weight",
    f"{LAYER}self_attn.o_proj.weight": "blk.0.attn_output.weight",
    f"{LAYER}post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    f"{LAYER}mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    f"{LAYER}mlp.up_proj.weight": "blk.0.ffn_up.weight",
    f"{LAYER}mlp.down_proj.weight": "blk.0.ffn_down.weight",
}
"""What llama.cpp calls the weights that each head has."""
OPTIONAL = {"input_norm.weight": "enc.output_norm.weight", "embed_tokens.weight": "token_embd.weight"}
"""And those that some have."""
FUSED = 3
"""How many states llama.cpp fuses."""
STATES_READ = ("llama", "qwen3")
"""Architectures whose states llama.cpp gives to a head, as far as that is tested; with others it aborts."""
ROPES = ("default", "linear", "llama3")
"""Kinds of positions, as transformers calls them, that can be written."""


def check_target(path: Path) -> None:
    """Refuse a target whose states llama.cpp does not give to a head.

    Args:
        path: its GGUF file.

    Raises:
        ValueError: with the architectures of which it does.
    """
    arch = GgufHeader.read(path).architecture
    if arch not in STATES_READ:
        raise ValueError(
            f"llama.cpp is not known to read an EAGLE-3 head's states from models of the architecture '{arch}'; it "
            f"does of {', '.join(STATES_READ)}"
        )


def gguf_of_head(head: HeadWeights, setting: PeerSetting) -> Path:
    """A GGUF file with the head's weights, in the user's cache; made where it is not there.

    Raises:
        ValueError: if llama.cpp has no such head.
        OSError: if it cannot be written; nothing is left of it then.
    """
    _check(head, setting.model.config)
    said = (FORM, sorted(setting.eos), setting.model.config.vocab_size, head.config.to_json_string(), head.states)
    weights = dict(head.tensors) if head.target_ids is None else {**head.tensors, "d2t": head.target_ids}
    digest = digest_of(f"{said} {head.norm_before_residual}", weights.items())
    return made_once(f"{ARCH}-{digest}", lambda path: _write(head, setting, path))


def _check(head: HeadWeights, target: Any) -> None:
    """Refuse what the format has no place for."""
    for name in head.tensors:
        if name not in NAMES and name not in OPTIONAL:
            raise ValueError(f"the EAGLE-3 head has a weight '{name}', for which llama.cpp's heads have no place")
    missing = next((name for name in NAMES if name not in head.tensors), None)
    if missing is not None:
        raise ValueError(f"the EAGLE-3 head has no weight '{missing}', which all of llama.cpp's heads have")
    if head.norm_output:
        raise ValueError("the EAGLE-3 head feeds its next step what has gone through its last norm; llama.cpp does not")
    if len(head.states) != FUSED:
        raise ValueError(f"the EAGLE-3 head fuses {len(head.states)} states; llama.cpp fuses {FUSED}")
    if max(head.states) >= target.num_hidden_layers:
        raise ValueError(
            f"the EAGLE-3 head reads what the last of {target.num_hidden_layers} layers returns; TALON writes heads "
            "for llama.cpp that read what enters a layer"
        )
    kind = head.config.rope_parameters.get("rope_type", "default")
    if kind not in ROPES:
        raise ValueError(f"the EAGLE-3 head's positions are of the kind '{kind}', which TALON does not write")
    if head.config.hidden_act != "silu":
        raise ValueError(f"the EAGLE-3 head's activation is '{head.config.hidden_act}'; llama.cpp's is 'silu'")


def _write(head: HeadWeights, setting: PeerSetting, path: Path) -> None:
    vocab_size = setting.model.config.vocab_size
    with written_at(path, ARCH) as writer:
        write_settings(writer, head.config, vocab_size)
        write_vocabulary(writer, vocab_size, setting.eos)
        # of the state that enters a layer, its number: as ours are counted
        writer.add_array(f"{ARCH}.target_layers", list(head.states))
        writer.add_uint32(f"{ARCH}.target_hidden_size", head.tensors["fc.weight"].shape[1] // FUSED)
        writer.add_bool(f"{ARCH}.norm_before_residual", head.norm_before_residual)
        writer.add_bool(f"{ARCH}.norm_before_fc", "input_norm.weight" in head.tensors)
        for name, weight in head.tensors.items():
            write_weight(writer, {**NAMES, **OPTIONAL}[name], _arranged(name, weight, head.config))
        if head.target_ids is not None:
            writer.add_tensor("d2t", head.target_ids.numpy())
        if head.config.rope_parameters.get("rope_type", "default") != "default":
            writer.add_tensor("rope_freqs.weight", _factors(head.config))


def _arranged(name: str, weight: "Tensor", config: Any) -> "Tensor":
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2], 0)
    return pairs_beside(weight, heads) if heads else weight


def _factors(config: Any) -> Any:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    frequencies: Any = LlamaRotaryEmbedding(config).inv_freq
    return rope_factors(config.rope_parameters, frequencies)
