"""Whether what a GGUF file says of a model can be right, seen from its header before anything is made of it.

What is refused here would be refused later, or after minutes, in words that name neither the value nor what is right.
"""

from __future__ import annotations

import re
from pathlib import Path

from talon_core.errors import is_whole
from talon_core.models.errors import UnreadableFile
from talon_core.models.gguf_header import GgufHeader, GgufTensor

TOKENS = "tokenizer.ggml.tokens"
TOKEN_IDS = tuple(f"tokenizer.ggml.{token}_token_id" for token in ("bos", "eos", "padding", "unknown"))
"""The tokens that transformers looks up while it reads a file."""

QUERIES = re.compile(r"blk\.\d+\.attn_(q|qkv)\.weight")
"""Tensors of layers with heads of attention; others may say that they have none."""

LAYER = re.compile(r"blk\.(\d+)\.")

OF_LAYERS = (
    *("embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "rope.dimension_count"),
)
"""Sizes of which each is a dimension of a tensor of a layer, or divides one."""

OF_ANY = ("feed_forward_length",)
"""Likewise, of any tensor: files of experts may say a length that no layer has."""

FITTING = "give a file whose metadata fits its weights"


def checked_header(path: Path) -> GgufHeader:
    """The header of a file of which a model is to be made.

    Raises:
        UnreadableFile: if the file is damaged, is a part of one, or says what cannot be right.
        OSError: if it cannot be opened.
    """
    header = GgufHeader.read(path)
    check_header(header)
    return header


def check_header(header: GgufHeader) -> None:
    """Raise `UnreadableFile` for a header from which no model can be made."""
    _check_parts(header)
    _check_tokens(header)
    _check_heads(header)
    _check_sizes(header)


def _check_parts(header: GgufHeader) -> None:
    count = header.values.get("split.count", 1)
    if count > 1:
        raise UnreadableFile(
            f"it is part {header.values.get('split.no', 0) + 1} of {count} of a split GGUF file (split.count {count}); "
            "merge the parts first, as with: llama-gguf-split --merge FIRST_PART MERGED.gguf"
        )


def _check_tokens(header: GgufHeader) -> None:
    count = header.lengths.get(TOKENS, 0)
    if not count:
        raise UnreadableFile(f"its metadata has no tokens (an array {TOKENS}); give a file with its tokenizer")
    for key in TOKEN_IDS:
        token = header.values.get(key)
        if token is not None and not (isinstance(token, int) and 0 <= token < count):
            raise UnreadableFile(
                f"its metadata says {key} {token}, and has {count} tokens; a token's number is from 0 to {count - 1}"
            )


def _value(header: GgufHeader, name: str) -> tuple[str, int | None]:
    """A key of the architecture, and its value; None where there is none, or an array of one for each layer."""
    key = f"{header.architecture}.{name}"
    found = header.values.get(key)
    if found is not None and not is_whole(found):
        raise UnreadableFile(f"its metadata says {key} {found}; it must be a whole number")
    return f"its metadata says {key} {found}", found


def _check_heads(header: GgufHeader) -> None:
    if not any(QUERIES.fullmatch(tensor.name) for tensor in header.tensors):
        return
    said, heads = _value(header, "attention.head_count")
    said_kv, kv_heads = _value(header, "attention.head_count_kv")
    said_rope, rope = _value(header, "rope.dimension_count")
    for sentence, count in ((said, heads), (said_kv, kv_heads)):
        if count is not None and count < 1:
            raise UnreadableFile(f"{sentence}; it must be at least 1")
    if rope is not None and (rope < 2 or rope % 2):
        raise UnreadableFile(f"{said_rope}; it must be an even number of at least 2")
    if heads is None:
        return
    for tensor in header.tensors:
        if tensor.name.endswith(".attn_q.weight") and _rows(tensor) % heads:
            rows = f"its tensor {tensor.name} has {_rows(tensor)} rows, which is no multiple of that"
            raise UnreadableFile(f"{said}, and {rows}; {FITTING}")
    if kv_heads is not None and heads % kv_heads:
        key = f"{header.architecture}.attention.head_count"
        raise UnreadableFile(f"{said_kv}, and {key} {heads}, which is no multiple of that; {FITTING}")


def _rows(tensor: GgufTensor) -> int:
    return tensor.shape[0]


def _check_sizes(header: GgufHeader) -> None:
    layers = {int(found[1]) for tensor in header.tensors if (found := LAYER.match(tensor.name))}
    said, count = _value(header, "block_count")
    if layers and count is not None and count > max(layers) + 1:
        there = max(layers) + 1
        raise UnreadableFile(f"{said}, and it has tensors of {there} layer{'s' * (there > 1)} only; {FITTING}")
    for name in ("context_length", "embedding_length", "vocab_size"):
        said, size = _value(header, name)
        if size is not None and size < 1:
            raise UnreadableFile(f"{said}; it must be at least 1")
    largest = max(max(tensor.shape) for tensor in header.tensors)
    of_layers = max((max(tensor.shape) for tensor in header.tensors if LAYER.match(tensor.name)), default=largest)
    for names, most, whose in (
        (OF_LAYERS, of_layers, "a tensor of its layers"),
        (OF_ANY, largest, "its tensors"),
    ):
        for name in names:
            said, size = _value(header, name)
            if size is not None and size > most:
                raise UnreadableFile(f"{said}, more than the {most} of the largest dimension of {whose}; {FITTING}")
