"""A loaded model as a GGUF file, with its own weights, number for number."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.models.gguf_header import GgufHeader
from talon_core.peer import PeerSetting
from talon_core.peers.gguf_writing import (
    digest_of,
    head_dim_of,
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


@attrs.frozen
class Family:
    """What GGUF and llama.cpp call a family of models, and how its weights are kept there.

    Attributes:
        arch: the name of the architecture.
        rotated: query and key weights have the halves of each head's rotary pairs beside each other.
        norm_offset: what is added to the weights of norms.
        window: attention of some layers is to a window.
        scaled: kinds of positions, as transformers calls them, whose frequencies can be written as factors.
    """

    arch: str
    rotated: bool = False
    norm_offset: float = 0.0
    window: bool = False
    scaled: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", rotated=True, scaled=("llama3", "linear")),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "gemma3_text": Family("gemma3", norm_offset=1.0, window=True),
}
"""By the model type of transformers. Each of these is compared with transformers in the tests, token by token."""


def gguf_of(setting: PeerSetting) -> Path:
    """A GGUF file with the model's weights, in the user's cache; made where it is not there.

    The vocabulary in the file is made up, one word for each id: prompts and answers are token ids. So nothing ends a
    text but the model's own end tokens, whatever they look like.

    Raises:
        ValueError: if llama.cpp has no such model, or not in this form.
        OSError: if it cannot be written; nothing is left of it then.
    """
    family = _family(setting.model)
    return made_once(_name(setting), lambda path: _write(setting, family, path))


def _family(model: Any) -> Family:
    config = model.config
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise ValueError(
            f"TALON writes no GGUF file of a model of type '{config.model_type}', only of {', '.join(FAMILIES)}; "
            "give one with file="
        )
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {each.get("rope_type", "default") for each in _ropes(rope)} - {"default", *family.scaled}
    if kinds:
        raise ValueError(
            f"the model's positions are of the kind '{', '.join(sorted(kinds))}', which TALON does not write; give a "
            "GGUF file with file="
        )
    if not family.window and getattr(config, "use_sliding_window", False):
        raise ValueError("the model attends to a sliding window; give a GGUF file with file=")
    return family


def _ropes(rope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of positions: of all layers, or by the kind of the layer."""
    nested = [each for each in rope.values() if isinstance(each, Mapping)]
    return nested or [rope]


def _name(setting: PeerSetting) -> str:
    """Of the file: the same for the same numbers and end tokens alone."""
    said = f"{FORM} {sorted(setting.eos)} {setting.model.config.to_json_string()}"
    return f"{setting.model.config.model_type}-{digest_of(said, _weights(setting.model))}"


def _weights(model: Any) -> "Iterator[tuple[str, Tensor]]":
    """Names and numbers, on the CPU; the output matrix only where it is not the embedding's."""
    tied = bool(model.config.tie_word_embeddings)
    for name, weight in model.state_dict().items():
        if not (tied and name == "lm_head.weight"):
            yield name, weight.detach().cpu()


def _write(setting: PeerSetting, family: Family, path: Path) -> None:
    import gguf

    config = setting.model.config
    with written_at(path, family.arch) as writer:
        write_settings(writer, config, config.vocab_size)
        if family.window:
            _check_gemma(config)
            writer.add_sliding_window(config.sliding_window)
        write_vocabulary(writer, config.vocab_size, setting.eos)
        names = gguf.get_tensor_name_map(_arch(family), config.num_hidden_layers)
        for name, weight in _weights(setting.model):
            written = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if written is None:
                raise ValueError(f"GGUF has no name for the model's weight '{name}'; give a file with file=")
            write_weight(writer, written, _arranged(name, weight, config, family))
        factors = _factors(setting.model)
        if factors is not None:
            writer.add_tensor("rope_freqs.weight", factors)


def _arch(family: Family) -> Any:
    from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES

    return next(arch for arch in MODEL_ARCH if MODEL_ARCH_NAMES[arch] == family.arch)


def _factors(model: Any) -> Any:
    """By what the frequencies of positions are divided, shape `(head_dim / 2,)`; None if by nothing."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if "rope_type" not in rope or rope["rope_type"] == "default":
        return None
    return rope_factors(rope, next(each for each in map(_frequencies, model.modules()) if each is not None))


def _frequencies(module: Any) -> "Tensor | None":
    return getattr(module, "inv_freq", None)


def _check_gemma(config: Any) -> None:
    """What llama.cpp takes for granted of this family and reads nowhere."""
    pattern = [
        "full_attention" if (layer + 1) % 6 == 0 else "sliding_attention" for layer in range(len(config.layer_types))
    ]
    local = config.rope_parameters["sliding_attention"]["rope_theta"]
    if [*config.layer_types] != pattern or local != 10_000 or config.query_pre_attn_scalar != head_dim_of(config):
        raise ValueError("the model is no Gemma 3 as llama.cpp has it; give a GGUF file with file=")


def _arranged(name: str, weight: "Tensor", config: Any, family: Family) -> "Tensor":
    """A weight as the family's files have it."""
    if family.norm_offset and name.endswith("norm.weight"):
        return weight.float() + family.norm_offset
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2], 0)
    if not (family.rotated and heads):
        return weight
    return pairs_beside(weight, heads)


def main_type(path: Path) -> str:
    """The format in which a GGUF file has most of its bytes, such as "float32" or "q4_1".

    Raises:
        ValueError: if it is no GGUF file.
    """
    from gguf import GGMLQuantizationType

    sizes: dict[str, int] = {}
    try:
        for tensor in GgufHeader.read(path).tensors:
            kind = GGMLQuantizationType(tensor.kind).name.lower()
            sizes[kind] = sizes.get(kind, 0) + math.prod(tensor.stored_shape)
    except ValueError as error:
        raise ValueError(f"'{path}' is no GGUF file that can be read; give another one") from error
    most = max(sizes, key=lambda kind: sizes[kind])
    return {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}.get(most, most)
