"""Hydra's heads: as Medusa's, but each also reads the tokens that were drafted before it."""

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge
from torch import Tensor, nn

from talon_core.basics.option_checks import whole_number
from talon_drafters.heads.residual import ResidualBlock


@attrs.frozen
class HydraConfig:
    """The sizes of Hydra's heads.

    Attributes:
        hidden_size: width of the target's hidden states and of its token embeddings.
        vocab_size: tokens the heads choose from: the target's vocabulary, or the drafter's own where it is smaller.
        num_heads: how many tokens ahead they look.
        num_layers: residual blocks of each head; the first one takes the embeddings in.
        grounded: heads read the tokens drafted before them; without it they are Medusa's.
        own_outputs: each head has an output matrix and bias of its own; otherwise all use the target's LM head.
        prefix: options of the `transformers.LlamaConfig` of a layer that runs over the hidden states before the
            heads do ("prefix-mlp", Hydra++); None for none ("mlp").
    """

    hidden_size: int = attrs.field(validator=[whole_number, ge(1)])
    vocab_size: int = attrs.field(validator=[whole_number, ge(1)])
    num_heads: int = attrs.field(default=4, validator=[whole_number, ge(1)])
    num_layers: int = attrs.field(default=1, validator=[whole_number, ge(1)])
    grounded: bool = True
    own_outputs: bool = False
    prefix: Mapping[str, Any] | None = None


def prefix_layer(options: Mapping[str, Any]) -> nn.Module:
    """A Llama of few layers, one by default, that takes states in the place of embeddings, and ends in a norm.

    Args:
        options: of `transformers.LlamaConfig`.
    """
    from transformers import LlamaConfig, LlamaModel

    no_tokens = {"vocab_size": 1, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    layer: nn.Module = LlamaModel(LlamaConfig(**{"num_hidden_layers": 1, **options, **no_tokens}))
    layer.embed_tokens = None  # type: ignore[assignment]  # states come in its place
    return layer


class HydraHeads(nn.Module):
    """Hydra's heads (Ankner et al., arXiv 2402.05109, section 3), with and without its prefix layer (section 4).

    With `s_t` the final hidden state at position `t`, or what the prefix layer makes of the states up to it, and
    `e_j` the embedding of token `j`, head `i`, counted from 0, gives token `t + 2 + i` from

        output_i(block_i,n(..block_i,1(s_t, e_(t+1), .., e_(t+1+i)))),

    where the commas inside stand for concatenation, and only `s_t` is there if the heads are not grounded. The order
    and the widths are those of the published weights (Spec-Bench, `model/hydra/hydra_heads`).
    """

    def __init__(self, config: HydraConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.prefix = prefix_layer(config.prefix) if config.prefix is not None else None
        self.blocks = nn.ModuleList(
            nn.Sequential(
                ResidualBlock(self.inputs(head), hidden),
                *(ResidualBlock(hidden, hidden) for _ in range(config.num_layers - 1)),
            )
            for head in range(config.num_heads)
        )
        self.outputs = (
            nn.ModuleList(nn.Linear(hidden, config.vocab_size) for _ in range(config.num_heads))
            if config.own_outputs
            else None
        )

    def inputs(self, head: int) -> int:
        """Width of what a head reads."""
        return self.config.hidden_size * (head + 2 if self.config.grounded else 1)

    def encode(self, states: Tensor, **options: Any) -> Tensor:
        """What the heads read of the hidden states.

        Args:
            states: the target's final hidden states, shape `(batch, length, hidden)`.
            options: for the prefix layer, such as a cache.

        Returns:
            The prefix layer's states, or `states` if there is none; the same shape.
        """
        if self.prefix is None:
            return states
        encoded: Tensor = self.prefix(inputs_embeds=states, **options).last_hidden_state
        return encoded

    def hidden(self, head: int, read: Tensor) -> Tensor:
        """What enters a head's output matrix.

        Args:
            head: which one, counted from 0.
            read: a state from `encode` and, if the heads are grounded, the embeddings of the `head + 1` tokens
                after it, concatenated; shape `(.., inputs)`.

        Returns:
            Shape `(.., hidden)`.
        """
        out: Tensor = self.blocks[head](read)
        return out

    def logits(self, head: int, read: Tensor, output: nn.Module | None = None) -> Tensor:
        """One head's logits, shape `(.., vocab)`; arguments as for `hidden` and `forward`."""
        own = self.outputs[head] if self.outputs is not None else output
        if own is None:
            raise ValueError("these heads have no output matrices of their own; pass the target's LM head as output")
        logits: Tensor = own(self.hidden(head, read))
        return logits
