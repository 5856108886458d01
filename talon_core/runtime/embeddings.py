"""What a drafter may read of its target's network, and share with it: the token embedding and the LM head."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from talon_core.runtime.best import check_tokens
from talon_core.runtime.blocks import BlockEmbedding, BlockLinear, InBlocks, like_weight, shape_of_weight


def vocabulary_size(model: Any) -> int:
    """How many token ids a causal LM has logits for."""
    head = model.get_output_embeddings()
    if isinstance(head, InBlocks):
        return head.weight_shape[0]
    for size in (_rows(getattr(head, "weight", None)), getattr(head, "out_features", None)):
        if size is not None:
            return int(size)
    return int(model.config.get_text_config().vocab_size)


def _rows(weight: Any) -> int | None:
    # weights that are packed have another shape
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point() else None


def output_weight(model: Any) -> Tensor:
    """The matrix of a causal LM's output layer, shape `(vocab, hidden)`, for drafters that read all of it.

    Where the layer has it in blocks, all of them are widened: `output_shape`, `output_rows` and `shared_output` need no
    memory for that.

    Raises:
        ValueError: if there is no matrix of floating-point numbers, because it is quantised or was exchanged.
    """
    return _readable_weight(model.get_output_embeddings(), "output layer")


def embedding_weight(model: Any) -> Tensor:
    """The table of a causal LM's token embeddings, shape `(vocab, width)`; raises as `output_weight` does.

    Where it is in blocks, all of them are widened, which `embedding_shape` and `shared_embedding` do not do.
    """
    return _readable_weight(model.get_input_embeddings(), "token embedding")


def output_shape(model: Any) -> tuple[int, int]:
    """The shape of a causal LM's output matrix, `(vocab, hidden)`; raises as `output_weight` does."""
    return shape_of_weight(_readable(model.get_output_embeddings(), "output layer"))


def embedding_shape(model: Any) -> tuple[int, int]:
    """The shape of a causal LM's table of token embeddings, `(vocab, width)`; raises as `output_weight` does."""
    return shape_of_weight(_readable(model.get_input_embeddings(), "token embedding"))


def like_output(model: Any) -> Tensor:
    """An empty tensor in the type and on the device of a causal LM's output matrix; raises as `output_weight` does."""
    return like_weight(_readable(model.get_output_embeddings(), "output layer"))


def output_rows(model: Any, tokens: Tensor) -> Tensor:
    """Rows of a causal LM's output matrix, shape `(tokens, hidden)`; raises as `output_weight` does.

    Args:
        model: whose it is.
        tokens: whose rows, shape `(tokens,)`, int64.
    """
    head = model.get_output_embeddings()
    if isinstance(head, InBlocks):
        return head.numbers(tokens)
    weight = _readable_weight(head, "output layer").detach()
    return weight[tokens.to(weight.device)]


def _readable(module: Any, what: str) -> Any:
    """The module, if its weight can be read."""
    if not isinstance(module, InBlocks):
        _readable_weight(module, what)
    return module


def _readable_weight(module: Any, what: str) -> Tensor:
    weight = getattr(module, "weight", None)
    if _rows(weight) is None:
        raise ValueError(
            f"the model's {what} is a {type(module).__name__} whose weight cannot be read; is it quantised? "
            "Choose a drafter that reads tokens alone"
        )
    assert isinstance(weight, Tensor)
    return weight


def shared_embedding(model: Any) -> Callable[[Tensor], Tensor]:
    """A causal LM's token embedding as a table look-up, without the scale that some models apply after it.

    From token ids, int64 of any shape, to `(.., width)`; raises as `output_weight` does, and if the table is on another
    device than the model's first layer.
    """
    table = model.get_input_embeddings()
    if isinstance(table, BlockEmbedding):
        return lambda ids: table.look_up(ids)
    weight = embedding_weight(model)
    _check_place(model, weight.device, "token embedding")
    return lambda ids: torch.nn.functional.embedding(ids, weight)


def _check_place(model: Any, device: torch.device, what: str) -> None:
    """Make sure that a part of a model can be run where the model's states are."""
    if device != model.device:
        raise ValueError(
            f"the model's {what} is on {device}, and its first layer on {model.device}; a drafter that shares it needs "
            "both on one device. Load the model on one, or choose a drafter that reads tokens alone"
        )


def shared_output(model: Any, vocabulary: Tensor | None = None) -> nn.Module:
    """A causal LM's LM head, for drafters without output matrices; a copy of the rows that a smaller vocabulary needs.

    Args:
        model: whose LM head it is.
        vocabulary: shape `(draft vocab,)`, int64; None for all tokens, which copies nothing.

    Raises:
        ValueError: if these are no different tokens of the model, or the rows of its LM head cannot be read; or if all
            of it is shared, and on another device than the model's first layer.
    """
    lm_head: Any = model.get_output_embeddings()
    if vocabulary is None:
        for weight in lm_head.parameters():
            _check_place(model, weight.device, "output layer")
        whole: nn.Module = lm_head
        return whole
    check_tokens("the tokens of the smaller vocabulary", vocabulary.cpu(), output_shape(model)[0])
    bias = getattr(lm_head, "bias", None)
    if isinstance(lm_head, BlockLinear):
        part_of_bias = None if bias is None else bias.detach()[vocabulary.to(bias.device)]
        blocks = lm_head.blocks.of_rows(vocabulary)
        return BlockLinear(lm_head.in_features, len(vocabulary), blocks, part_of_bias).to(lm_head.like.dtype)
    weight = output_weight(model)
    rows = vocabulary.to(weight.device)
    with torch.device("meta"):
        part = nn.Linear(weight.shape[1], len(rows), bias=bias is not None)
    part.weight = nn.Parameter(weight.detach()[rows], requires_grad=False)
    if bias is not None:
        part.bias = nn.Parameter(bias.detach()[rows], requires_grad=False)
    return part.to(model.device)
