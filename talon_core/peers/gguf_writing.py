"""What GGUF files that are written here have in common: their place, vocabulary, and forms of numbers."""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talon_core.basics.paths import cache_folder, put_in_place

if TYPE_CHECKING:
    from torch import Tensor

END_KEYS = ("eos", "eot", "eom")
"""What GGUF calls the tokens that end a text, of which it knows three."""


def made_once(name: str, write: Callable[[Path], None]) -> Path:
    """A GGUF file in the user's cache, written where it is not there.

    Args:
        name: of the file, without its ending; the same for the same contents alone.
        write: writes it to a path.

    Raises:
        OSError: if it cannot be written; nothing is left of it then.
    """
    folder = cache_folder() / "gguf"
    path = folder / f"{name}.gguf"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    from filelock import FileLock

    with FileLock(folder / ".lock"):
        if not path.is_file():
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".partial", delete=False) as unfinished:
                pass
            try:
                write(Path(unfinished.name))
                put_in_place(Path(unfinished.name), path)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    Path(unfinished.name).unlink()
                if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
                    raise OSError(error.errno, error.strerror, str(path)) from error
                raise
    return path


def digest_of(said: str, weights: "Iterable[tuple[str, Tensor]]") -> str:
    """A text that is the same for the same words and numbers alone, 24 characters long.

    Args:
        said: what tells contents apart besides their numbers.
        weights: names and numbers, on the CPU.
    """
    import torch

    digest = hashlib.sha256(said.encode())
    with torch.no_grad():
        for name, weight in weights:
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(weight.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:24]


@contextlib.contextmanager
def written_at(path: Path, arch: str) -> Iterator[Any]:
    """A `gguf.GGUFWriter`, whose file is written when it is left.

    Args:
        path: of the file.
        arch: what GGUF calls the architecture.
    """
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    try:
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def write_settings(writer: Any, config: Any, vocab_size: int) -> None:
    """Sizes, norms and positions of decoder layers.

    Args:
        writer: a `gguf.GGUFWriter`.
        config: a transformers configuration.
        vocab_size: how many tokens there are.
    """
    head_dim = head_dim_of(config)
    ropes = getattr(config, "rope_parameters", None) or {}
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(vocab_size)
    writer.add_rope_freq_base(ropes.get("full_attention", ropes)["rope_theta"])


def head_dim_of(config: Any) -> int:
    """The width of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def write_vocabulary(writer: Any, size: int, eos: Iterable[int]) -> None:
    """A made-up vocabulary, one word for each id.

    Args:
        writer: a `gguf.GGUFWriter`.
        size: how many tokens there are.
        eos: tokens that end a text.
    """
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"<{token}>" for token in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["< >"])
    writer.add_add_bos_token(False)
    for key, token in zip(END_KEYS, sorted(eos), strict=False):
        add: Callable[[int], None] = getattr(writer, f"add_{key}_token_id")
        add(token)


def pairs_beside(weight: "Tensor", heads: int) -> "Tensor":
    """A query or key matrix with the halves of each head's rotary pairs beside each other, where transformers has all
    first halves before the second ones.

    Args:
        weight: shape `(heads * head_dim, ...)`.
        heads: how many there are.
    """
    rest = weight.shape[1:]
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *rest).transpose(1, 2).reshape(weight.shape)


def rope_factors(rope: Mapping[str, Any], frequencies: "Tensor") -> Any:
    """By what the frequencies of positions are divided, a NumPy array of shape `(head_dim / 2,)`, float32.

    Args:
        rope: transformers' settings of positions.
        frequencies: what it makes of them, shape `(head_dim / 2,)`.
    """
    import torch

    found = frequencies.float().cpu()
    exponents = torch.arange(len(found), dtype=torch.float64) / len(found)
    return (rope["rope_theta"] ** -exponents / found).float().numpy()


def write_weight(writer: Any, name: str, weight: "Tensor") -> None:
    """A weight on the CPU: a matrix in its own format, anything else in float32.

    Args:
        writer: a `gguf.GGUFWriter`.
        name: what GGUF calls it.
        weight: of any shape.
    """
    numbers, kind = _stored(weight)
    writer.add_tensor(name, numbers, raw_dtype=kind)


def _stored(weight: "Tensor") -> tuple[Any, Any]:
    """A weight's bytes or numbers, and GGUF's type."""
    import torch
    from gguf import GGMLQuantizationType as Types

    if weight.ndim < 2 or weight.dtype not in (torch.bfloat16, torch.float16):
        return weight.float().contiguous().numpy(), Types.F32
    if weight.dtype == torch.float16:
        return weight.contiguous().numpy(), Types.F16
    return weight.contiguous().view(torch.uint8).numpy(), Types.BF16
