"""Opening EAGLE's heads for a target."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from talon_core.drafter import Drafter
from talon_core.hf.target import HFTarget
from talon_core.target import Target
from talon_core.tree import IntArray, TokenTree
from talon_drafters.checkpoints.eagle import EagleFiles
from talon_drafters.checkpoints.eagle3 import Eagle3Files
from talon_drafters.checkpoints.files import Checkpoint, read_checkpoint
from talon_drafters.eagle import Eagle
from talon_drafters.eagle3 import Eagle3, default_states
from talon_drafters.feature_drafter import FeatureDrafter, shared_embedding
from talon_drafters.head_drafter import accelerated, checkpoint_for, transformers_target
from talon_drafters.heads.layers import FeatureHead

Select = Callable[[Tensor], Tensor]
"""From the features that the target was asked for to those of one meaning of the layers' numbers."""

CHECK_PROMPT = "Write a short story about a lighthouse keeper."
CHECK_TOKENS = 64


def open_eagle3(spec: Eagle3, target: Target) -> Drafter:
    """Open an EAGLE-3 head; raises as `DrafterSpec.open` does."""
    target = transformers_target(target, spec.name)
    text = target.model.config.get_text_config()
    files = Eagle3Files.of(checkpoint_for(target, spec.path, spec.name, ""))
    weight = target.model.get_output_embeddings().weight
    head = files.head(text.hidden_size, target.vocab_size, weight)
    readings = spec.readings(text.num_hidden_layers)
    found = head.config.num_fused
    for states in readings.values():
        if len(states) != found:
            raise files.checkpoint.error(
                f"fuses {found} states of width {text.hidden_size}, but {len(states)} layers are named; "
                f"give them as layers=..., {found} numbers joined by +"
            )
    embed = embedding_of(head, head.fc.out_features, target, files.checkpoint)
    selects = {name: _columns(states, target, text.hidden_size) for name, states in readings.items()}
    described = files.describe(head)
    meaning = next(iter(selects))
    if len(selects) > 1:
        shares = layer_meanings(target, head, embed, selects)
        usual = default_states(text.num_hidden_layers)
        meaning = max(shares, key=lambda name: (shares[name], readings[name] == usual))
        described["agreement_by_meaning"] = shares
    described.update(layer_ids_are=meaning, states=readings[meaning])
    return _drafter(head, embed, target, described, selects[meaning])


def open_eagle(spec: Eagle, target: Target) -> Drafter:
    """Open an EAGLE-1 or EAGLE-2 head; raises as `DrafterSpec.open` does."""
    target = transformers_target(target, spec.name)
    files = EagleFiles.of(read_checkpoint(spec.path))
    head = files.head(target.model.get_output_embeddings(), target.vocab_size)
    embed = embedding_of(head, head.num_features, target, files.checkpoint)
    return _drafter(head, embed, target, files.describe(head))


def _drafter(
    head: FeatureHead,
    embed: Callable[[Tensor], Tensor],
    target: HFTarget,
    described: Mapping[str, object],
    select: Select = lambda features: features,
) -> FeatureDrafter:
    session = accelerated(target, head)
    return FeatureDrafter(head, embed, target.vocab_size, target.attention, session, select, described)


def embedding_of(head: nn.Module, width: int, target: HFTarget, checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """From token ids to embeddings: the head's own table, or else the target's.

    Raises:
        ValueError: if the head has none, and the target's has not the width that it reads.
    """
    own: nn.Module | None = getattr(head, "embed_tokens", None)
    if own is not None:
        return own
    found = int(target.model.get_input_embeddings().weight.shape[1])
    if found != width:
        raise checkpoint.error(
            f"has no embed_tokens.weight and reads embeddings of width {width}; this target's have width {found}"
        )
    return shared_embedding(target.model)


def _columns(states: tuple[int, ...], target: HFTarget, width: int) -> Select:
    """From the features that the target was asked for to these states, in this order."""
    asked = target.runner.features
    if states == asked:
        return lambda features: features
    places = [asked.index(state) for state in states]
    return lambda features: torch.cat([features[..., at * width : (at + 1) * width] for at in places], dim=-1)


def layer_meanings(
    target: HFTarget, head: FeatureHead, embed: Callable[[Tensor], Tensor], selects: Mapping[str, Select]
) -> dict[str, float]:
    """How often the head agrees with the target on a little text of its, for each meaning of the layers' numbers."""
    prompt, ids, features = greedy_text(target)
    return {name: agreement(head, embed, prompt, ids, select(features)) for name, select in selects.items()}


@torch.inference_mode()
def greedy_text(target: HFTarget) -> tuple[int, IntArray, Tensor]:
    """A short text by the target, greedily, and its features.

    Returns:
        How many of its tokens were given; token ids, shape `(tokens,)`; and the features of all but the last, shape
        `(tokens - 1, features)`.
    """
    if target.tokenizer is not None:
        ids = list(target.tokenizer(CHECK_PROMPT)["input_ids"])
    else:
        ids = list(range(min(8, target.vocab_size)))
    longest = len(ids) + CHECK_TOKENS
    if target.context_length is not None:
        longest = min(longest, target.context_length)
    ids = ids[: max(longest // 2, 1)]
    prompt = len(ids)
    passes = target.passes
    with target.session():
        target.prefill([np.array(ids, dtype=np.int64)], [longest + 1])
        while len(ids) < longest:
            (outputs,) = target.verify([TokenTree.root(ids[-1])])
            target.commit([np.zeros(1, dtype=np.int64)])
            ids.append(int(outputs.logits[0].argmax()))
        text = np.array(ids, dtype=np.int64)
        (features,) = target.prefill([text], [len(text) + 1])
    target.passes = passes
    assert features is not None
    return prompt, text, features


@torch.inference_mode()
def agreement(
    head: FeatureHead, embed: Callable[[Tensor], Tensor], prompt: int, ids: IntArray, features: Tensor
) -> float:
    """The share of a text's tokens behind its prompt that are the head's best guess from the target's features."""
    tokens = torch.as_tensor(ids[1:], device=features.device)

    def attend(_: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    positions = torch.arange(len(tokens), device=features.device)[None]
    states = head.fuse(features.to(head.dtype))[None]
    _, hidden = head(embed(tokens)[None].to(head.dtype), states, positions, attend)
    best = head.logits(hidden[0]).argmax(-1)
    if head.target_ids is not None:
        best = head.target_ids[best]
    # row i knows the tokens up to i + 1 and guesses the one after it; the prompt's were not the target's choice
    first = max(prompt - 2, 0)
    return float((best[first:-1] == tokens[first + 1 :]).float().mean())
