"""The network of EAGLE-1 and EAGLE-2 (Li et al. 2024, arXiv 2401.15077 and 2406.16858), which share their weights."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from talon_drafters.heads.layers import Attend, FeatureHead, HeadLayer, Keep


class EagleHead(FeatureHead):
    """The head: one decoder layer over the target's last state and the next token's embedding, the target's LM head.

    With `f` the target's last state after its final norm, `e` the embedding of the token after it (EAGLE, section 3.1):

        x = fc(cat(e, f))
        f' = decoder layers(x)                  the first without a norm at its input; the next step's f
        logits = the target's lm_head(f')       no norm in between

    Args:
        layer: a transformers Llama configuration of its decoder layers.
        num_layers: how many there are.
        fc_bias: the joining layer has a bias.
        lm_head: the target's, shared.
        embedding: its own token embedding, shape `(vocab, hidden)`; None if it uses the target's.
    """

    def __init__(
        self, layer: Any, num_layers: int, fc_bias: bool, lm_head: Any, embedding: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        width = layer.hidden_size
        self.num_features = width
        self.target_ids = None
        self.fc = nn.Linear(2 * width, width, bias=fc_bias)
        self.layers = nn.ModuleList(HeadLayer(layer, number, input_norm=number > 0) for number in range(num_layers))
        self.embed_tokens = nn.Embedding(*embedding) if embedding is not None else None
        self.rotary = LlamaRotaryEmbedding(layer)
        self._lm_head = [lm_head]  # in a list: it is no part of this module

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        x, rotary = self._begun(embeddings, states, positions)
        for layer in self.layers:
            x = layer(x, rotary, attend)
        return x, x

    def read(self, embeddings: Tensor, states: Tensor, positions: Tensor, attend: Attend, keep: Keep) -> None:
        x, rotary = self._begun(embeddings, states, positions)
        *before, last = self.layers
        for layer in before:
            x = layer(x, rotary, attend)
        assert isinstance(last, HeadLayer)
        last.read(x, rotary, keep)

    def _begun(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What the first layer reads, and its positions as cosines and sines."""
        x = self.fc(torch.cat([embeddings, states], dim=-1))
        return x, self.rotary(x, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self._lm_head[0](hidden)
        return scores
