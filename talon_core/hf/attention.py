"""How TALON's attention reaches an unforked transformers model: one registered function, one keyword."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from talon_core.attention import AttentionBackend, TreeLayout

ATTENTION_NAME = "talon"
"""The name in transformers' `AttentionInterface`. No mask function goes with it: no mask is ever made."""

PASS_KEYWORD = "talon_pass"
"""The keyword of `model(...)` that carries the `Pass` to every attention layer."""


class Pass:
    """One forward pass of a batch of trees, or of one prompt, through all attention layers.

    Args:
        layout: who may attend to whom; for a prompt, a chain of its tokens.
        backend: computes tree attention.
        prompt: the pass is a prompt (one sequence, a chain), which plain causal attention serves better.

    Attributes:
        windows: the sliding window that each layer asked for, in the order of the calls.
    """

    def __init__(self, layout: TreeLayout, backend: AttentionBackend, prompt: bool = False) -> None:
        self.layout = layout
        self.backend = backend
        self.prompt = prompt
        self.windows: list[int | None] = []

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        softcap: float | None,
        window: int | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attention for one layer; shapes as in `AttentionBackend.attend`."""
        self.windows.append(window)
        if self.prompt and softcap is None and sinks is None:
            return _causal(query, key, value, int(self.layout.prefix_lengths[0]), scale, window)
        return self.backend.attend(
            query, key, value, self.layout, scale=scale, softcap=softcap, window=window, sinks=sinks
        )


def _causal(query: Tensor, key: Tensor, value: Tensor, start: int, scale: float, window: int | None) -> Tensor:
    """Causal attention of queries at positions `start`, `start + 1`, ... over all positions before them."""
    queries = query.shape[2]
    end = start + queries
    key, value = key[:, :, :end], value[:, :, :end]
    mask = None
    if start or (window is not None and window < end):
        position = start + _arange(queries, query)[:, None]
        behind = position - _arange(end, query)[None, :]  # (queries, end)
        mask = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    grouped = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None and queries > 1, scale=scale, enable_gqa=grouped
    )


def _arange(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)


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
    this_pass = kwargs.get(PASS_KEYWORD)
    if this_pass is None:
        raise RuntimeError(
            "this model is being decoded by TALON, or its attention layers drop keyword arguments; "
            "finish or close the running generation before calling the model yourself"
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


AttentionInterface.register(ATTENTION_NAME, _talon_attention)
