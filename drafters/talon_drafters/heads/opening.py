"""What drafters share that are heads on the target's hidden states: how they are opened."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from talon_core.hf.checks import embedding_weight
from talon_core.hf.target import HFTarget
from talon_core.target import Target
from talon_drafters.checkpoints.files import Checkpoint, read_checkpoint, shipped_for
from talon_drafters.checkpoints.reading import Sizes
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_drafters.heads.layers import FeatureHead

Select = Callable[[Tensor], Tensor]
"""From the features that the target was asked for to those that a head reads."""


def transformers_target(target: Target, kind: str) -> HFTarget:
    """The target, if it is one whose hidden states can be read.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(target, HFTarget):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError from every drafter that does not fit
            f"drafter '{kind}' drafts for transformers models, not for a {type(target).__name__}"
        )
    return target


def checkpoint_for(target: HFTarget, path: str, kind: str, stem: str) -> Checkpoint:
    """The files that were asked for, or those that are shipped for the target.

    Raises:
        ValueError: if none are shipped, or they cannot be read.
    """
    source = path or shipped_for(target.model, kind)
    if source is None:
        sizes = Sizes.of(target)
        raise ValueError(
            f"drafter '{kind}' needs path=FOLDER_OR_ID; none is shipped for this target "
            f"(hidden size {sizes.hidden}, {sizes.vocab} tokens)"
        )
    return read_checkpoint(source, stem)


def embedding_of(head: nn.Module, width: int, target: HFTarget, checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """From token ids to embeddings: the head's own table, or else the target's.

    Raises:
        ValueError: if the head has none, and the target's has not the width that it reads.
    """
    own: nn.Module | None = getattr(head, "embed_tokens", None)
    if own is not None:
        return own
    found = int(embedding_weight(target.model).shape[1])
    if found != width:
        raise checkpoint.error(
            f"has no embed_tokens.weight and reads embeddings of width {width}; this target's have width {found}"
        )
    return shared_embedding(target.model)


def shared_embedding(model: Any) -> Callable[[Tensor], Tensor]:
    """The target's token embedding as a table look-up, without the scale that some models apply after it."""
    weight = embedding_weight(model)
    return lambda ids: torch.nn.functional.embedding(ids, weight)


def shared_output(target: HFTarget, vocabulary: Tensor | None) -> nn.Module:
    """The target's LM head for heads without output matrices; a copy of the rows that a smaller vocabulary needs.

    Args:
        target: whose LM head it is.
        vocabulary: shape `(draft vocab,)`, int64; None for all tokens, which copies nothing.
    """
    lm_head: Any = target.model.get_output_embeddings()
    if vocabulary is None:
        whole: nn.Module = lm_head
        return whole
    rows = vocabulary.to(lm_head.weight.device)
    bias = getattr(lm_head, "bias", None)
    with torch.device("meta"):
        part = nn.Linear(lm_head.weight.shape[1], len(rows), bias=bias is not None)
    part.weight = nn.Parameter(lm_head.weight.detach()[rows], requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias.detach()[rows], requires_grad=False)
    return part


def accelerated(target: HFTarget, heads: nn.Module, output: nn.Module | None = None) -> AbstractContextManager[object]:
    """A context in which heads and their output matrix run faster, if the target does."""
    own = nn.ModuleList([heads])
    if output is not None and output is not target.model.get_output_embeddings():  # which its session accelerates
        own.append(output)
    return target.accelerator.prepare(own) if target.accelerator is not None else nullcontext()


def feature_drafter(
    head: FeatureHead,
    embed: Callable[[Tensor], Tensor],
    target: HFTarget,
    described: Mapping[str, object],
    select: Select = lambda features: features,
) -> FeatureDrafter:
    """What drafts with an autoregressive head, accelerated if the target is; arguments as `FeatureDrafter` has them."""
    session = accelerated(target, head)
    return FeatureDrafter(
        head, embed, target.vocab_size, target.attention, session, select, described, target.recorder()
    )
