"""The tokens of a sequence, as processors and stop conditions read them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from talon_core.tree import IntArray

if TYPE_CHECKING:
    from torch import Tensor, device


class TokenBuffer:
    """A sequence's committed tokens, with room behind them for the path under test.

    Tokens go to the target's device when somebody looks at them there, so that greedy decoding without processors sends
    none.

    Args:
        ids: the first of them, shape `(prompt,)`, int64.
        capacity: for how many there is room from the start.
        device: where tensors of them are wanted; None for the host.

    Attributes:
        length: how many are committed.
    """

    def __init__(self, ids: IntArray, capacity: int, device: "device | None") -> None:
        self._here = np.zeros((1, max(capacity, len(ids))), dtype=np.int64)
        self._there: Any = None
        self._sent = 0  # so many of the committed tokens are on the device
        self._on_host = device is None or device.type == "cpu"
        self._device = device
        self.length = 0
        self.append(ids)

    def append(self, tokens: IntArray) -> None:
        """Commit tokens."""
        self.length = self._written(tokens)

    def array_with_path(self, tokens: IntArray) -> IntArray:
        """Committed tokens and then `tokens`, shape `(1, length + len(tokens))`; valid until the next call."""
        end = self._written(tokens)  # which may make more room
        return self._here[:, :end]

    def with_path(self, tokens: IntArray) -> "Tensor":
        """The same as a tensor, where the target's logits are."""
        import torch

        ids = self.array_with_path(tokens)
        if self._on_host:
            return torch.from_numpy(ids)
        end = ids.shape[1]
        if self._there is None or end > self._there.shape[1]:
            self._there = torch.zeros(self._here.shape, dtype=torch.int64, device=self._device)
            self._sent = 0
        self._there[0, self._sent : end] = torch.as_tensor(ids[0, self._sent :], device=self._device)
        self._sent = self.length
        there: Tensor = self._there[:, :end]
        return there

    def _written(self, tokens: IntArray) -> int:
        """Write tokens behind the committed ones; returns where they end."""
        end = self.length + len(tokens)
        if end > self._here.shape[1]:
            grown = np.zeros((1, 2 * end), dtype=np.int64)
            grown[:, : self.length] = self._here[:, : self.length]
            self._here = grown
        self._here[0, self.length : end] = tokens
        return end
