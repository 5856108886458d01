"""Medusa's heads: each guesses one token further ahead from the same hidden state."""

import attrs
import torch
from attrs.validators import ge
from torch import Tensor, nn

from talon_core.basics.option_checks import whole_number
from talon_drafters.heads.residual import ResidualBlock


@attrs.frozen
class MedusaConfig:
    """The sizes of Medusa's heads.

    Attributes:
        hidden_size: width of the target's hidden states.
        vocab_size: tokens the heads choose from: the target's vocabulary, or the drafter's own where it is smaller.
        num_heads: how many tokens ahead they look.
        num_layers: residual blocks of each head.
        bias: whether the blocks' linear maps have one.
        own_outputs: each head has an output matrix of its own; otherwise all use the target's LM head.
    """

    hidden_size: int = attrs.field(validator=[whole_number, ge(1)])
    vocab_size: int = attrs.field(validator=[whole_number, ge(1)])
    num_heads: int = attrs.field(default=4, validator=[whole_number, ge(1)])
    num_layers: int = attrs.field(default=1, validator=[whole_number, ge(0)])
    bias: bool = True
    own_outputs: bool = False


class MedusaHeads(nn.Module):
    """`output_i(block_i,n(..block_i,1(state)))`, Medusa's heads (Cai et al., arXiv 2401.10774, section 2.1.1).

    From the state at position `t`, whose LM head gives token `t + 1`, head `i`, counted from 0, gives token
    `t + 2 + i`. The state is what enters the LM head. Blocks are not shared between layers; in the original
    implementation the layers of a head are one module, which its files hold once for each layer.

    New blocks are the identity, so that new heads say what their output matrix makes of the state.
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(hidden, hidden, config.bias) for _ in range(config.num_layers)))
            for _ in range(config.num_heads)
        )
        self.outputs = (
            nn.ModuleList(nn.Linear(hidden, config.vocab_size, bias=False) for _ in range(config.num_heads))
            if config.own_outputs
            else None
        )

    def hidden(self, states: Tensor) -> Tensor:
        """What enters the output matrices: from shape `(.., hidden)` to `(heads, .., hidden)`."""
        return torch.stack([blocks(states) for blocks in self.blocks])

    def forward(self, states: Tensor, output: nn.Module | None = None) -> Tensor:
        """The logits of all heads.

        Args:
            states: the target's final hidden states, shape `(.., hidden)`.
            output: the output matrix of heads that have none of their own; not used otherwise.

        Returns:
            Shape `(heads, .., vocab)`.

        Raises:
            ValueError: if there is no output matrix.
        """
        hidden = self.hidden(states)
        if self.outputs is not None:
            return torch.stack([one(state) for one, state in zip(self.outputs, hidden, strict=True)])
        if output is None:
            raise ValueError("these heads have no output matrices of their own; pass the target's LM head as output")
        logits: Tensor = output(hidden)
        return logits
