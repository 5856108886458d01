"""What autoregressive heads are made of: decoder layers that leave keys, values and masks to their caller."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    rotate_half,
)

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`attend(layer, query, key, value)`: attention over whatever the caller lets these positions see.

The query has shape `(batch, heads, rows, head_dim)`, key and value `(batch, kv_heads, rows, head_dim)`, all with
their positions applied; so has the result the query's shape.
"""

Keep = Callable[[int, Tensor, Tensor], object]
"""`keep(layer, key, value)`: the caller keeps what later rows attend to; shapes as for `Attend`."""


class HeadAttention(nn.Module):
    """Self-attention of a drafting head, Llama's or (with `q_norm` and `k_norm`) Qwen3's.

    Args:
        config: a transformers configuration of one of these two; `attention_out_bias`, where it has that, says
            whether the output has a bias too.
        inputs: width of what it reads.
        layer: its number, for `Attend`.
    """

    def __init__(self, config: Any, inputs: int, layer: int) -> None:
        super().__init__()
        bias = bool(config.attention_bias)
        out_bias = bool(getattr(config, "attention_out_bias", bias))
        self.layer = layer
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.q_proj = nn.Linear(inputs, config.num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(inputs, config.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(inputs, config.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=out_bias)
        normed = config.model_type == "qwen3"
        self.q_norm = LlamaRMSNorm(self.head_dim, config.rms_norm_eps) if normed else nn.Identity()
        self.k_norm = LlamaRMSNorm(self.head_dim, config.rms_norm_eps) if normed else nn.Identity()

        self.numbers_of_a_row = 2 * config.num_key_value_heads * self.head_dim  # keys and values of one token

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Args: x of shape `(batch, rows, inputs)`, cosines and sines of `(batch, rows, head_dim)`."""
        query = self.q_norm(self._of_heads(self.q_proj(x))).transpose(1, 2)
        key, value = self._keys_and_values(x)
        query, key = apply_rotary_pos_emb(query, key, *rotary)
        out = attend(self.layer, query, key, value)
        joined: Tensor = self.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))
        return joined

    def read(self, x: Tensor, rotary: tuple[Tensor, Tensor], keep: Keep) -> None:
        """What `forward` leaves for later rows, with the same bits, and no more: keys and values."""
        key, value = self._keys_and_values(x)
        cosines, sines = (each.unsqueeze(1) for each in rotary)
        keep(self.layer, key * cosines + rotate_half(key) * sines, value)

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Without positions, each of shape `(batch, kv_heads, rows, head_dim)`."""
        key: Tensor = self.k_norm(self._of_heads(self.k_proj(x))).transpose(1, 2)
        return key, self._of_heads(self.v_proj(x)).transpose(1, 2)

    def _of_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim)


class HeadLayer(nn.Module):
    """An ordinary decoder layer: attention and a gated MLP, each behind a norm and beside a residual.

    Args:
        config: as for `HeadAttention`.
        layer: its number.
        input_norm: whether attention's input is normalised.
    """

    def __init__(self, config: Any, layer: int, input_norm: bool = True) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps) if input_norm else nn.Identity()
        self.self_attn = HeadAttention(config, config.hidden_size, layer)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, attend)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def read(self, x: Tensor, rotary: tuple[Tensor, Tensor], keep: Keep) -> None:
        """As `HeadAttention.read`."""
        self.self_attn.read(self.input_layernorm(x), rotary, keep)


class FeatureHead(nn.Module):
    """A head that goes from the target's features and the next token to the features after it, step by step.

    A row is a pair: the feature of a token, and the token that comes after it. The first step takes the target's
    features through `fuse`; later ones take what `forward` gave for the row before.

    Attributes:
        num_features: width of the target's features.
        target_ids: the target's token for each row of the logits, shape `(draft_vocab,)`, int64, ascending; None if
            the draft vocabulary is the target's.
        rotary: positions to cosines and sines.
    """

    num_features: int
    target_ids: Tensor | None
    rotary: LlamaRotaryEmbedding

    @abstractmethod
    def fuse(self, features: Tensor) -> Tensor:
        """The target's features `(..., num_features)` as states of the head, `(..., hidden)`."""

    @abstractmethod
    def forward(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            embeddings: of the tokens, shape `(batch, rows, embedding)`.
            states: of what is before them, shape `(batch, rows, hidden)`.
            positions: of the rows, shape `(batch, rows)`, int64.
            attend: attention over the rows that each row may see.

        Returns:
            The states for the next step and what `logits` wants, each of shape `(batch, rows, hidden)`.
        """

    def read(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend, keep: Keep) -> None:
        """A step of rows whose answers nobody wants: all that it leaves for later ones, the same as `forward` does.

        By default that is `forward`. Of the last layer keys and values are enough: of a head with one layer about a
        quarter of the work.

        Args:
            embeddings: as for `forward`, and so are the next three.
            states: likewise.
            positions: likewise.
            attend: likewise; it keeps the keys and values of its layer, too.
            keep: keeps those of a layer that is not asked for more.
        """
        self(embeddings, states, positions, attend)

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the token after each row's, shape `(..., draft_vocab)`."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return next(self.parameters()).dtype
