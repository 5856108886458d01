"""Tiny random models as GGUF files, in any kind of blocks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 256, 256, 4, 2, 64
SCALES = {"Q4_K": 0, "Q5_K": 0, "Q6_K": 208}
"""Where a block of a kind that gguf cannot write has its float16 factor; another may follow."""

MATRICES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
NORMS = {
    "llama": ("attn_norm", "ffn_norm"),
    "deci": ("attn_norm", "ffn_norm"),
    "qwen2": ("attn_norm", "ffn_norm"),
    "qwen3moe": ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
    "gemma3": (
        *("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        *("attn_q_norm", "attn_k_norm"),
    ),
}
BIASES = {"qwen2": ("attn_q", "attn_k", "attn_v")}


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random blocks with factors of about the size of weights, shape `(rows, bytes of a row)`."""
    rng = np.random.default_rng(seed)
    if kind not in SCALES:
        numbers = rng.standard_normal((rows, columns), dtype=np.float32) / 16
        return quantize(numbers, GGMLQuantizationType[kind]).view(np.uint8)
    block, count = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = rng.integers(0, 256, (rows, columns // block, count), dtype=np.uint8)
    factors = (rng.standard_normal((rows, columns // block, 2)) * 1e-4).astype(np.float16).view(np.uint8)
    first = SCALES[kind]
    width = min(4, count - first)
    data[..., first : first + width] = factors[..., :width]
    return data.reshape(rows, -1)


def add_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Write a byte-level vocabulary; how many tokens it has."""
    # The printable stand-ins of byte-level vocabularies: themselves where printable, shifted by 256 otherwise.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    tokens = ["<s>", "</s>", *map(chr, printable), *(chr(256 + place) for place in range(len(others)))]
    tokens.append("\u0120\u0120")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)
    return len(tokens)


def write_out(writer: gguf.GGUFWriter) -> None:
    """Write all that the writer was given, and close its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(
    path: Path,
    kinds: str | Mapping[str, str],
    architecture: str = "llama",
    *,
    layers: int = 1,
    untied: bool = False,
    without: Sequence[str] = (),
    more: Mapping[str, NDArray[Any]] | None = None,
    vocab_size: int | None = None,
    heads: int = HEADS,
    settings: Callable[[gguf.GGUFWriter], object] = lambda _: None,
) -> Path:
    """Write a random model with a byte-level vocabulary of 259 tokens.

    Args:
        path: the file.
        kinds: of all matrices, or of each by its name without layer and suffix, such as `attn_q`; "F32" for the others.
        architecture: a key of `NORMS`.
        layers: how many.
        untied: whether the output matrix is one of its own.
        without: names of tensors to leave out.
        more: float32 tensors to write besides, by name.
        vocab_size: tokens that the embedding has, where it does not fit the vocabulary.
        heads: attention heads that the metadata says.
        settings: writes more of the metadata.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    tokens = add_tokenizer(writer)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(heads)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(tokens)
    if architecture == "gemma3":
        writer.add_sliding_window(16)
    settings(writer)
    rng = np.random.default_rng(0)
    vocab = (tokens if vocab_size is None else vocab_size, HIDDEN)
    matrices = {"token_embd": vocab, **({"output": vocab} if untied else {})}
    vectors = {"output_norm": HIDDEN}
    for layer in range(layers):
        matrices |= {f"blk.{layer}.{name}": shape for name, shape in MATRICES.items()}
        norms = {name: HEAD_DIM if name in ("attn_q_norm", "attn_k_norm") else HIDDEN for name in NORMS[architecture]}
        vectors |= {f"blk.{layer}.{name}": size for name, size in norms.items()}
    for name, shape in matrices.items():
        own = name.rpartition(".")[2]
        kind = kinds if isinstance(kinds, str) else kinds.get(own, "F32")
        if f"{name}.weight" in without:
            continue
        if kind in ("F32", "F16"):
            numbers = (rng.standard_normal(shape) / 16).astype(np.float32 if kind == "F32" else np.float16)
            writer.add_tensor(f"{name}.weight", numbers)
        else:
            blocks = random_blocks(kind, *shape, seed=len(name) + sum(map(ord, name)))
            writer.add_tensor(f"{name}.weight", blocks, raw_dtype=GGMLQuantizationType[kind])
    written = {f"{name}.weight": 1 + rng.standard_normal(size) / 8 for name, size in vectors.items()}
    for layer in range(layers):
        for name in BIASES.get(architecture, ()):
            written[f"blk.{layer}.{name}.bias"] = rng.standard_normal(MATRICES[name][0]) / 8
    for name, numbers in {**written, **(more or {})}.items():
        if name not in without:
            writer.add_tensor(name, numbers.astype(np.float32))
    write_out(writer)
    return path
