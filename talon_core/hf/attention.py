"""How TALON's attention reaches an unforked transformers model: one registered function, one keyword."""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from talon_core.runtime.passes import ATTENTION_NAME, Pass

__all__ = ["ATTENTION_NAME"]  # imported from here it is known to transformers


def _talon_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each attention layer; returns `(batch, queries, heads, head_dim)` and no weights."""
    this_pass = Pass.found(kwargs, key)
    if this_pass is None:
        raise RuntimeError(
            "this model is being decoded by TALON, or its layers hand neither keywords nor the cache's own keys on to "
            "their attention; finish or close the running generation before calling the model yourself"
        )
    out = this_pass.attend(
        query,
        key,
        value,
        scaling if scaling is not None else query.shape[-1] ** -0.5,
        kwargs.get("softcap"),
        kwargs.get("sliding_window"),
        kwargs.get("s_aux"),
    )
    return out.transpose(1, 2), None


# no mask function goes with it: no mask is ever made
AttentionInterface.register(ATTENTION_NAME, _talon_attention)
