"""What drafters share that are heads on the target's hidden states: how they are opened."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from talon_core.runtime.best import Vocabulary
from talon_core.runtime.embeddings import embedding_shape, output_shape, shared_embedding, shared_output
from talon_core.runtime.network import NetworkTarget
from talon_core.runtime.row_sizes import in_rows_of
from talon_drafters.checkpoints.files import Checkpoint, read_checkpoint, shipped_for
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_drafters.heads.layers import FeatureHead, HeadAttention
from talon_drafters.heads.weights import keep_weights

Select = Callable[[Tensor], Tensor]
"""From the features that the target was asked for to those that a head reads."""


def checkpoint_for(model: Any, path: str, kind: str, stem: str) -> Checkpoint:
    """The files that were asked for, or those that are shipped for the target, a transformers causal LM.

    Raises:
        ValueError: if none are shipped, or they cannot be read.
    """
    source = path or shipped_for(model, kind)
    if source is None:
        vocab, hidden = output_shape(model)
        raise ValueError(
            f"drafter '{kind}' needs path=FOLDER_OR_ID; none is shipped for this target "
            f"(hidden size {hidden}, {vocab} tokens)"
        )
    return read_checkpoint(source, stem)


def output_of(
    heads: nn.Module, vocabulary: Tensor | None, target: NetworkTarget
) -> tuple[nn.Module | None, Vocabulary, AbstractContextManager[object]]:
    """What guessing heads score tokens with.

    Args:
        heads: whose `outputs` are their output matrices; None where they use the target's LM head.
        vocabulary: the tokens that they choose from, shape `(draft vocab,)`, int64; None for all.
        target: what they draft for.

    Returns:
        The target's LM head where they use it, what the columns of their scores stand for, and a context in which all
        of it is as fast as the target.
    """
    output = shared_output(target.model, vocabulary) if heads.outputs is None else None
    faster = target.faster(heads) if output is None else target.faster(heads, output)
    return output, Vocabulary(target.vocab_size, None if vocabulary is None else vocabulary.numpy()), faster


def embedding_of(head: nn.Module, width: int, model: Any, checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
    """From token ids to embeddings: the head's own table, or else that of the target, a transformers causal LM.

    Raises:
        ValueError: if the head has none, and the target's has not the width that it reads.
    """
    own: nn.Module | None = getattr(head, "embed_tokens", None)
    if own is not None:
        return own
    found = embedding_shape(model)[1]
    if found != width:
        raise checkpoint.error(
            f"has no embed_tokens.weight and reads embeddings of width {width}; this target's have width {found}"
        )
    return shared_embedding(model)


def feature_drafter(
    head: FeatureHead,
    embed: Callable[[Tensor], Tensor],
    target: NetworkTarget,
    described: Mapping[str, object],
    select: Select = lambda features: features,
    weights: str = "auto",
) -> FeatureDrafter:
    """What drafts with an autoregressive head, accelerated if the target is.

    Arguments are as `FeatureDrafter` and `keep_weights` have them.
    """
    numbers = sum(one.numbers_of_a_row for one in head.modules() if isinstance(one, HeadAttention))
    described = {**described, "weights": keep_weights(head, weights, target)}
    executor = target.executor()
    return FeatureDrafter(
        head,
        embed,
        target.vocab_size,
        executor,
        target.faster(head),
        select,
        described,
        lambda rows: in_rows_of(target, rows, numbers * head.dtype.itemsize),
        target.chained(executor),
    )
