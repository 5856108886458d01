"""The network of EAGLE-3 (Li et al. 2025, arXiv 2503.01840), with every variation that published checkpoints have."""

from typing import Any

import attrs
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from talon_drafters.heads.layers import Attend, FeatureHead, HeadAttention, HeadLayer, Keep


@attrs.frozen(eq=False)
class Eagle3Config:
    """What an EAGLE-3 head looks like. The defaults are those of the authors' own files.

    Attributes:
        layer: a transformers Llama or Qwen3 configuration of its decoder layers: widths, heads, norms, RoPE.
        target_hidden_size: width of the target's states.
        draft_vocab_size: number of tokens it can draft.
        num_layers: decoder layers; the first one reads token and feature, the others are ordinary.
        num_fused: how many states of the target are fused.
        fc_bias: the fusing layer has a bias.
        norm_before_residual: the first layer's residual is the normed feature.
        norm_before_fc: a norm over the concatenated states, before they are fused.
        fc_norm: a norm of its own for each state, before they are fused; with `norm_before_fc`, behind that one.
        norm_output: the next step is fed what has gone through the last norm.
        embedding_norm: the first layer normalises the token's embedding.
        last_norm: there is a norm before the LM head.
    """

    layer: Any
    target_hidden_size: int
    draft_vocab_size: int
    num_layers: int = 1
    num_fused: int = 3
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    embedding_norm: bool = True
    last_norm: bool = True


class FirstLayer(nn.Module):
    """The layer that reads the next token's embedding and the feature side by side, the embedding first."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = LlamaRMSNorm(width, eps) if config.embedding_norm else nn.Identity()
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.self_attn = HeadAttention(config.layer, 2 * width, 0)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)
        self.mlp = LlamaMLP(config.layer)

    def forward(self, embeddings: Tensor, states: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x, normed = self._joined(embeddings, states)
        residual = normed if self.norm_before_residual else states
        x = residual + self.self_attn(x, rotary, attend)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def read(self, embeddings: Tensor, states: Tensor, rotary: tuple[Tensor, Tensor], keep: Keep) -> None:
        """As `HeadAttention.read`."""
        self.self_attn.read(self._joined(embeddings, states)[0], rotary, keep)

    def _joined(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, and the normed states in it."""
        normed = self.hidden_norm(states)
        return torch.cat([self.input_layernorm(embeddings), normed], dim=-1), normed


class Eagle3Head(FeatureHead):
    """The head: fuses low, middle and high states of the target, one decoder layer, an LM head of its own.

    With `g` the fused feature of a token, `e` the embedding of the token after it, both as in the paper's section 3:

        g = fc(cat(low, middle, high))          in the first step; later g is the state of the step before
        a = g + attention(cat(norm(e), norm(g)))
        y = a + mlp(norm(a))                    the next step's g
        logits = lm_head(norm(y))               over the draft vocabulary

    Args:
        config: its shape.
        target_ids: see `FeatureHead`; None if it drafts the whole vocabulary.
        embedding: its own token embedding, shape `(vocab, hidden)`; None if it uses the target's.
    """

    def __init__(
        self, config: Eagle3Config, target_ids: Tensor | None = None, embedding: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        width, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        self.config = config
        self.num_features = config.num_fused * config.target_hidden_size
        self.fc = nn.Linear(self.num_features, width, bias=config.fc_bias)
        self.input_norm = LlamaRMSNorm(self.num_features, eps) if config.norm_before_fc else nn.Identity()
        norms = config.num_fused if config.fc_norm else 0
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(config.target_hidden_size, eps) for _ in range(norms))
        layers: list[nn.Module] = [FirstLayer(config)]
        layers += [HeadLayer(config.layer, layer) for layer in range(1, config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = LlamaRMSNorm(width, eps) if config.last_norm else nn.Identity()
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(*embedding) if embedding is not None else None
        self.rotary = LlamaRotaryEmbedding(config.layer)
        self.register_buffer("target_ids", target_ids, persistent=False)

    def fuse(self, features: Tensor) -> Tensor:
        features = self.input_norm(features)
        if len(self.fc_norm):
            parts = torch.split(features, self.config.target_hidden_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(features)
        return fused

    def forward(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        rotary = self.rotary(embeddings, positions)
        first, *others = self.layers
        x = first(embeddings, states, rotary, attend)
        for layer in others:
            x = layer(x, rotary, attend)
        normed = self.norm(x)
        return (normed if self.config.norm_output else x), normed

    def read(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend, keep: Keep) -> None:
        rotary = self.rotary(embeddings, positions)
        first, *others = self.layers
        assert isinstance(first, FirstLayer)
        if not others:
            first.read(embeddings, states, rotary, keep)
            return
        x = first(embeddings, states, rotary, attend)
        for layer in others[:-1]:
            x = layer(x, rotary, attend)
        last = others[-1]
        assert isinstance(last, HeadLayer)
        last.read(x, rotary, keep)

    def logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.lm_head(hidden)
        return scores
