"""Hydra's files, with the head architectures "mlp" and "prefix-mlp"."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from talon_drafters.checkpoints.files import Checkpoint
from talon_drafters.checkpoints.reading import Sizes, counted, fill, layers_of_heads, renamed, shaped
from talon_drafters.checkpoints.vocabulary import draft_vocabulary
from talon_drafters.checkpoints.writing import write_checkpoint
from talon_drafters.hydra.network import HydraConfig, HydraHeads, prefix_layer

STEM = "hydra_lm_head"
"""How the original calls the file with the weights."""

ARCHITECTURES = ("mlp", "prefix-mlp")

ORIGINAL = {
    r"(?:hydra_head\.)?hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)": r"blocks.\1.\2.\3.\4",
    r"(?:hydra_head\.)?hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)": r"outputs.\1.\2",
    r"(?:hydra_head\.)?prefix_embeding_layer\.((?:layers\.\d+|norm)\..*)": r"prefix.\1",
}
"""Spec-Bench, `model/hydra/hydra_heads/mlp_head.py` and `prefix_mlp_head.py`; "embeding" is theirs."""

IGNORED = r"d2t|t2d|token_map|.*\.rotary_emb\.inv_freq|(?:hydra_head\.)?prefix_embeding_layer\.embed_tokens\.weight"
"""The prefix layer's table of embeddings is never read; old Llamas kept RoPE's frequencies."""

PREFIX = "prefix_config"
"""The entry of `config.json` in which we keep the prefix layer's options; the original takes the target's."""

PREFIX_OPTIONS = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings"),
    *("rms_norm_eps", "rope_parameters", "attention_bias", "mlp_bias"),
)


@attrs.frozen(eq=False)
class ReadHydra:
    """Hydra heads as their files hold them.

    Attributes:
        heads: in the type and on the device that were asked for.
        vocabulary: the target's id of each of the heads' tokens, shape `(draft vocab,)`, int64; None for all tokens.
    """

    heads: HydraHeads
    vocabulary: Tensor | None


def resembles_hydra(checkpoint: Checkpoint) -> bool:
    """Whether these are files of Hydra heads, be they readable or not."""
    return any(re.fullmatch(rule, name) for rule in ORIGINAL for name in checkpoint.tensors)


def hydra_of(checkpoint: Checkpoint, sizes: Sizes, like: Tensor, target_config: Any = None) -> ReadHydra:
    """Make heads of a checkpoint; how many and of which kind, its tensors say and not its configuration.

    Args:
        checkpoint: the drafter's files.
        sizes: the target's.
        like: gives the type and the device.
        target_config: the target's `transformers` configuration, from which a prefix layer has what its tensors do
            not say, such as its number of heads, where the checkpoint does not say it.

    Raises:
        ValueError: if the architecture or the layout is unknown, a tensor is missing, or one does not fit the target.
    """
    _check_config(checkpoint)
    names = _by_block(renamed(checkpoint, ORIGINAL, IGNORED, "Hydra"))
    vocabulary = draft_vocabulary(checkpoint, sizes.vocab)
    layers = layers_of_heads(checkpoint, names)
    if len(set(layers)) > 1 or not layers[0]:
        raise checkpoint.error(f"has heads of {min(layers)} to {max(layers)} blocks; they must have equally many")
    config = HydraConfig(
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab if vocabulary is None else len(vocabulary),
        num_heads=len(layers),
        num_layers=layers[0],
        grounded="blocks.0.0.res_connection.weight" in names,
        own_outputs=any(name.startswith("outputs.") for name in names),
    )
    with torch.device("meta"):
        heads = HydraHeads(config)
    prefix = _prefix_options(checkpoint, names, sizes, target_config)
    if prefix is not None:
        heads.config = attrs.evolve(config, prefix=prefix)
        heads.prefix = prefix_layer(prefix)  # not on `meta`: RoPE's frequencies are in no file
    fill(heads, shaped(checkpoint, names, heads, vocabulary, sizes.vocab), like)
    return ReadHydra(heads, vocabulary)


def _check_config(checkpoint: Checkpoint) -> None:
    architecture = checkpoint.config.get("hydra_head_arch", "mlp")
    if architecture not in ARCHITECTURES:
        raise checkpoint.error(
            f"has Hydra heads of architecture '{architecture}'; TALON knows {' and '.join(ARCHITECTURES)}"
        )
    offset = checkpoint.config.get("hidden_state_offset") or 0
    if offset:
        raise checkpoint.error(
            f"reads the hidden state {offset} layers below the last (hidden_state_offset); TALON gives it the last one"
        )


def _by_block(names: Mapping[str, str]) -> dict[str, str]:
    """Blocks numbered from 0 on: where the original has dropout between them, it counts that too."""
    numbers = sorted({int(match[1]) for name in names if (match := re.match(r"blocks\.\d+\.(\d+)\.", name))})
    if not numbers or any(number % 2 == 0 for number in numbers):
        return dict(names)
    return {
        re.sub(r"^(blocks\.\d+)\.(\d+)\.", lambda match: f"{match[1]}.{int(match[2]) // 2}.", name): theirs
        for name, theirs in names.items()
    }


def _prefix_options(
    checkpoint: Checkpoint, names: Mapping[str, str], sizes: Sizes, target_config: Any
) -> Mapping[str, Any] | None:
    """The prefix layer's options, or None if the checkpoint has none of its tensors."""
    prefixed = checkpoint.config.get("hydra_head_arch") == "prefix-mlp"
    layers = {int(match[1]) for name in names if (match := re.match(r"prefix\.layers\.(\d+)\.", name))}
    if not layers and not prefixed:
        return None
    count = counted(checkpoint, layers, "prefix_embeding_layer.layers.{}")
    gate = checkpoint.tensor(names.get("prefix.layers.0.mlp.gate_proj.weight", "mlp.gate_proj.weight"), -1, -1)
    options = checkpoint.config.get(PREFIX)
    if options is None:
        if getattr(target_config, "model_type", None) != "llama":
            raise checkpoint.error(
                f"has a prefix layer whose options are neither in its config.json ({PREFIX}) nor those of its target, "
                "which is no Llama; add them"
            )
        options = {name: getattr(target_config, name) for name in PREFIX_OPTIONS}
    if not isinstance(options, Mapping):
        raise checkpoint.error(f"has {PREFIX} {options!r} in its config.json; it must be an object")
    return {**options, "hidden_size": sizes.hidden, "intermediate_size": len(gate), "num_hidden_layers": count}


def save_hydra(
    folder: str | Path, heads: HydraHeads, vocabulary: Tensor | None = None, config: Mapping[str, Any] | None = None
) -> None:
    """Write heads in the original's layout, to be read back by TALON and by others.

    Args:
        folder: where to; made if it is not there.
        heads: what to write.
        vocabulary: the target's id of each of the heads' tokens, shape `(draft vocab,)`, int64; written as `d2t`,
            which others than TALON do not know. None if the heads choose from all tokens.
        config: further entries of `config.json`, such as `base_model_name_or_path`.
    """
    sizes = heads.config
    tensors: dict[str, Tensor] = {}
    for name, tensor in heads.state_dict().items():
        tensors[_original_name(name, sizes.prefix is not None)] = tensor
    ours: dict[str, Any] = {
        "hydra_num_heads": sizes.num_heads,
        "hydra_num_layers": sizes.num_layers,
        "hydra_head_arch": ARCHITECTURES[sizes.prefix is not None],
        "grounded_heads": sizes.grounded,
        "hidden_state_offset": 0,
        "hidden_size": sizes.hidden_size,
        "vocab_size": sizes.vocab_size,
    }
    if sizes.prefix is not None:
        ours[PREFIX] = dict(sizes.prefix)
    write_checkpoint(folder, STEM, tensors, {**ours, **(config or {})}, vocabulary)


def _original_name(name: str, dropout: bool) -> str:
    part, rest = name.split(".", 1)
    if part == "prefix":
        return f"prefix_embeding_layer.{rest}"
    head, rest = rest.split(".", 1)
    if part == "outputs":
        return f"hydra_lm_head.{head}.1.{rest}" if dropout else f"hydra_lm_head.{head}.{rest}"
    block, rest = rest.split(".", 1)
    return f"hydra_mlp.{head}.{2 * int(block) + 1 if dropout else block}.{rest}"
