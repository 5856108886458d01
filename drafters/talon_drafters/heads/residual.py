"""The residual block, of which heads on one hidden state are made."""

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """`r(x) + SiLU(linear(x))`, where `r` is the identity, or a second linear map if the width changes.

    A new block is the identity, or in the latter case `r`.

    Args:
        inputs: width of `x`.
        hidden_size: width of the result.
        bias: whether `linear` has one; `r` always has.
    """

    def __init__(self, inputs: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, hidden_size, bias=bias)
        nn.init.zeros_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)
        self.res_connection = nn.Linear(inputs, hidden_size) if inputs != hidden_size else None

    def forward(self, x: Tensor) -> Tensor:
        """From shape `(.., inputs)` to `(.., hidden)`."""
        kept: Tensor = x if self.res_connection is None else self.res_connection(x)
        return kept + F.silu(self.linear(x))
