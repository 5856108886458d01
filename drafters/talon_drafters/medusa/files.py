"""Medusa's files: the original layout, the one without output matrices, and vLLM's."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from talon_drafters.checkpoints.files import Checkpoint
from talon_drafters.checkpoints.reading import Sizes, fill, layers_of_heads, renamed, shaped
from talon_drafters.checkpoints.vocabulary import draft_vocabulary
from talon_drafters.checkpoints.writing import write_checkpoint
from talon_drafters.medusa.network import MedusaConfig, MedusaHeads

STEM = "medusa_lm_head"
"""How the original calls the file with the weights."""

VLLM = {
    r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)": r"blocks.\1.\2.linear.\3",
    r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight": r"outputs.\1.weight",
    r"(?:medusa_heads\.)?lm_head\.weight": r"outputs.all.weight",
}
"""vLLM, `vllm/model_executor/models/medusa.py`; with `original_lm_head` one matrix serves all heads."""

ORIGINAL = {
    r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(weight|bias)": r"blocks.\1.\2.linear.\3",
    r"(?:medusa_head\.)?(\d+)\.(\d+)\.weight": r"outputs.\1.weight",
}
"""FasterDecoding/Medusa, `medusa/model/medusa_model.py`; without the matrices, all heads use the target's LM head."""

VOCABULARY = r"d2t|t2d|token_map"

HEADS_OF_VLLM = tuple(VLLM)[:1]
"""Of its rules, those that no other kind of checkpoint follows: its output matrix is called as everybody's."""


@attrs.frozen(eq=False)
class ReadMedusa:
    """Medusa heads as their files hold them.

    Attributes:
        heads: in the type and on the device that were asked for.
        vocabulary: the target's id of each of the heads' tokens, shape `(draft vocab,)`, int64; None for all tokens.
    """

    heads: MedusaHeads
    vocabulary: Tensor | None


def resembles_medusa(checkpoint: Checkpoint) -> bool:
    """Whether these are files of Medusa heads, be they readable or not."""
    return any(re.fullmatch(rule, name) for rule in (*ORIGINAL, *HEADS_OF_VLLM) for name in checkpoint.tensors)


def medusa_of(checkpoint: Checkpoint, sizes: Sizes, like: Tensor) -> ReadMedusa:
    """Recognise the layout of a checkpoint and make heads of it; how many, its tensors say and not its configuration.

    Args:
        checkpoint: the drafter's files.
        sizes: the target's.
        like: gives the type and the device.

    Raises:
        ValueError: if the layout is unknown, a tensor is missing, or one does not fit the target.
    """
    if checkpoint.config.get("logit_scale", 1.0) != 1.0:
        raise checkpoint.error(f"scales its logits by {checkpoint.config['logit_scale']}; only 1 is known to TALON")
    config, names = _config(checkpoint, renamed(checkpoint, {**VLLM, **ORIGINAL}, VOCABULARY, "Medusa"), sizes)
    vocabulary = draft_vocabulary(checkpoint, sizes.vocab)
    if vocabulary is not None:
        config = attrs.evolve(config, vocab_size=len(vocabulary))
    with torch.device("meta"):
        heads = MedusaHeads(config)
    fill(heads, shaped(checkpoint, names, heads, vocabulary, sizes.vocab), like)
    return ReadMedusa(heads, vocabulary)


def _config(checkpoint: Checkpoint, names: Mapping[str, str], sizes: Sizes) -> tuple[MedusaConfig, Mapping[str, str]]:
    """The heads' sizes, and the names with one output matrix for each head where there is one for all."""
    common = names.get("outputs.all.weight")
    names = {name: theirs for name, theirs in names.items() if name != "outputs.all.weight"}
    layers = layers_of_heads(checkpoint, names)
    if len(set(layers)) > 1:
        raise checkpoint.error(f"has heads of {min(layers)} to {max(layers)} blocks; they must have equally many")
    outputs = {int(match[1]) for name in names if (match := re.fullmatch(r"outputs\.(\d+)\..*", name))}
    if common is not None or (checkpoint.config.get("original_lm_head") and outputs == {0}):
        common = common if common is not None else names["outputs.0.weight"]
        names = {**names, **{f"outputs.{head}.weight": common for head in range(len(layers))}}
    elif outputs and len(outputs) < len(layers):
        lacking = min(set(range(len(layers))) - outputs)
        raise checkpoint.error(f"has {len(outputs)} output matrices for {len(layers)} heads; head {lacking} has none")
    config = MedusaConfig(
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        num_heads=len(layers),
        num_layers=layers[0],
        bias="blocks.0.0.linear.bias" in names,
        own_outputs=bool(outputs) or common is not None,
    )
    return config, names


def save_medusa(
    folder: str | Path, heads: MedusaHeads, vocabulary: Tensor | None = None, config: Mapping[str, Any] | None = None
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
        part, head, rest = name.split(".", 2)
        tensors[f"{head}.{rest}" if part == "blocks" else f"{head}.{sizes.num_layers}.{rest}"] = tensor
    ours = {
        "medusa_num_heads": sizes.num_heads,
        "medusa_num_layers": sizes.num_layers,
        "hidden_size": sizes.hidden_size,
        "vocab_size": sizes.vocab_size,
    }
    write_checkpoint(folder, STEM, tensors, {**ours, **(config or {})}, vocabulary)
