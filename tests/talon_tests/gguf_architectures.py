"""Tiny random models of the architectures of GGUF files that transformers reads, written by transformers' own names.

Keys of the metadata and names of tensors are those that transformers looks for, turned around, so there is no second
list. Sizes that a file does not say must be transformers' defaults, as in a file of a real model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers import modeling_gguf_pytorch_utils as theirs

from talon_tests.tiny_gguf import add_tokenizer, write_out

Shape = tuple[int, ...]

SIZES = {
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 128},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}
EXPERTS = {"num_experts_per_tok": 2}


def _linear_ones_turned(name: str, shape: Shape) -> Shape:
    """GPT-2's layers have inputs before outputs; its files have them as all others do."""
    turned = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return shape[::-1] if name.endswith(turned) else shape


def _gate_as_a_row(name: str, shape: Shape) -> Shape:
    return shape[1:] if "ffn_gate_inp_shexp" in name else shape


def _kernel_without_middle(name: str, shape: Shape) -> Shape:
    return (shape[0], shape[-1]) if "ssm_conv1d.weight" in name else shape


@attrs.frozen
class Architecture:
    """One architecture of GGUF files.

    Attributes:
        model_type: its name in transformers.
        sizes: of the model, by their names in its configuration.
        in_blocks: layers of which our model holds the weights in blocks.
        shape: of a tensor in the file, by its name there and its shape in the model.
        refused: words of the sentence that says why such a target cannot verify trees; empty if it can.
    """

    model_type: str
    sizes: Mapping[str, Any]
    in_blocks: int
    shape: Callable[[str, Shape], Shape] = lambda _, shape: shape
    refused: str = ""


ARCHITECTURES = {
    "bloom": Architecture("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}, 10, refused="another target"),
    "falcon": Architecture("falcon", {**SIZES, "ffn_hidden_size": 256}, 2, refused="another target"),
    "gemma2": Architecture("gemma2", {**SIZES, "head_dim": 32, "sliding_window": 16}, 16),
    "gemma3": Architecture("gemma3_text", {**SIZES, "head_dim": 32, "sliding_window": 16}, 16),
    "gemma4": Architecture("gemma4_text", {**SIZES, "head_dim": 256, "global_head_dim": 512, "sliding_window": 16}, 22),
    "gpt2": Architecture("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4}, 3, _linear_ones_turned),
    "llama": Architecture("llama", {**SIZES, "head_dim": 16}, 16),
    "mamba": Architecture(
        "mamba",
        {
            **{"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
            **{"intermediate_size": 128, "time_step_rank": 4, "conv_kernel": 4},
        },
        8,
        _kernel_without_middle,
        refused="only full and sliding-window attention",
    ),
    "minimax-m2": Architecture("minimax_m2", {**SIZES, **EXPERTS, "head_dim": 32, "num_local_experts": 4}, 10),
    "nemotron": Architecture("nemotron", SIZES, 14),
    "phi3": Architecture("phi3", SIZES, 10),
    "qwen2": Architecture("qwen2", SIZES, 16),
    "qwen2moe": Architecture("qwen2_moe", {**SIZES, **EXPERTS, "num_experts": 4}, 16, _gate_as_a_row),
    "qwen3": Architecture("qwen3", {**SIZES, "head_dim": 128}, 16),
    "qwen3moe": Architecture("qwen3_moe", {**SIZES, **EXPERTS, "head_dim": 16, "num_experts": 4}, 10),
    "stablelm": Architecture("stablelm", SIZES, 16),
    "starcoder2": Architecture("starcoder2", SIZES, 14),
}


def write_architecture(path: Path, name: str, kind: str = "Q8_0") -> Path:
    """Write a random model of an architecture, its matrices in blocks where a row is whole blocks long.

    Args:
        path: the file.
        name: a key of `ARCHITECTURES`.
        kind: of the blocks.
    """
    one = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(str(path), name)
    vocabulary = {"vocab_size": add_tokenizer(writer), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = CONFIG_MAPPING[one.model_type](**one.sizes, **vocabulary)
    _add_settings(writer, name, config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    processor = theirs.TENSOR_PROCESSORS.get(name, theirs.TensorProcessor)(config=config.to_dict())
    shapes = {own: tuple(tensor.shape) for own, tensor in model.state_dict().items()}
    rng = np.random.default_rng(0)
    for tensor, own in theirs.get_gguf_hf_weights_map(model, processor).items():
        if tensor == "output.weight" and config.tie_word_embeddings:
            continue
        shape = one.shape(tensor, shapes[own])
        numbers = rng.standard_normal(shape).astype(np.float32) / 8
        if "norm" in tensor:
            numbers += 1
        if "ssm_a" in tensor:  # of which transformers takes the logarithm
            numbers = -np.exp(numbers)
        if len(shape) > 1 and shape[-1] % gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] == 0:
            blocks = quantize(numbers, GGMLQuantizationType[kind])
            writer.add_tensor(tensor, blocks, raw_dtype=GGMLQuantizationType[kind])
        else:
            writer.add_tensor(tensor, numbers)
    write_out(writer)
    return path


def _add_settings(writer: gguf.GGUFWriter, name: str, config: Any) -> None:
    keys = theirs.GGUF_TO_TRANSFORMERS_MAPPING["config"]
    own = keys.get(config.model_type) or keys[config.model_type.removesuffix("_text")]
    for key, entry in own.items():
        value = getattr(config, entry, None) if entry else None
        if isinstance(value, float):
            writer.add_float32(f"{name}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{name}.{key}", value)
    rotary = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rotary:
        writer.add_float32(f"{name}.rope.freq_base", float(rotary["rope_theta"]))
