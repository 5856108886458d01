"""A GGUF file of somebody's with the vocabulary of those that are written here."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from talon_core.peers.gguf_writing import made_once, write_vocabulary, written_at

EMBEDDING = "token_embd.weight"
WRITTEN = ("GGUF.", "general.architecture", "tokenizer.")
"""How the names of fields begin that are written anew, or by the writer itself."""


def with_made_up_vocabulary(path: Path, eos: Iterable[int]) -> Path:
    """A copy of a GGUF file with the same weights and a made-up vocabulary, in the user's cache.

    llama.cpp drafts with a model only if it has the words of the target. Those of a file that is written here are made
    up; then both have the same ones.

    Args:
        path: a GGUF file of a language model.
        eos: tokens that end a text.

    Raises:
        ValueError: if the file has no table of token embeddings, which says how many tokens there are.
        OSError: if the copy cannot be written; nothing is left of it then.
    """
    import gguf

    ends = sorted(eos)
    reader = gguf.GGUFReader(path)
    table = next((tensor for tensor in reader.tensors if tensor.name == EMBEDDING), None)
    if table is None:
        raise ValueError(f"'{path}' has no tensor {EMBEDDING}; give the GGUF file of a language model")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:24]
    size = int(table.shape[1])
    return made_once(f"draft-{digest}-{'-'.join(map(str, ends))}", lambda copy: _write(reader, copy, size, ends))


def _write(reader: Any, copy: Path, size: int, eos: Iterable[int]) -> None:
    with written_at(copy, reader.fields["general.architecture"].contents()) as writer:
        for name, field in reader.fields.items():
            if not name.startswith(WRITTEN):
                array = field.types[0].name == "ARRAY"
                writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)
        write_vocabulary(writer, size, eos)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
