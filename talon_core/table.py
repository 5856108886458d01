"""A target given by a table: tiny, in float64, and exact, for tests that enumerate every outcome."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from talon_core.target import NodeOutputs, Target
from talon_core.tree import FloatArray, IntArray, TokenTree


class TableTarget(Target):
    """A target whose next-token logits depend on the last few tokens through a table.

    Args:
        logits: shape `(vocab,) * (order + 1)`, float64: `logits[a, b]` are the scores after the tokens `a, b` for
            order 2. Shorter contexts are filled with token 0 on the left. Minus infinity forbids a token.
        context_length: most tokens of prompt and output together; None for no limit.

    Raises:
        ValueError: if the axes differ in length.
    """

    def __init__(self, logits: FloatArray, context_length: int | None = None) -> None:
        self.logits = np.asarray(logits, dtype=np.float64)
        if len(set(self.logits.shape)) != 1:
            raise ValueError(f"a table of logits needs axes of one length, the vocabulary's; got {self.logits.shape}")
        self.vocab_size = self.logits.shape[0]
        self.order = self.logits.ndim - 1
        self.context_length = context_length
        self.device = torch.device("cpu")
        self._prefixes: list[list[int]] = []
        self._trees: list[TokenTree | None] = []

    def after(self, prefix: Sequence[int]) -> FloatArray:
        """Logits of the token after `prefix`, shape `(vocab,)`, float64."""
        padded = [0] * self.order + [int(token) for token in prefix]
        logits: FloatArray = self.logits[tuple(padded[len(padded) - self.order :])]
        return logits

    def prefill(self, prompts: Sequence[IntArray], max_lengths: Sequence[int]) -> list[Tensor | None]:
        self._prefixes = [prompt[:-1].tolist() for prompt in prompts]
        return [None] * len(prompts)

    def verify(self, trees: Sequence[TokenTree | None]) -> list[NodeOutputs]:
        self.passes += 1
        self._trees = list(trees)
        return [NodeOutputs(self._logits(*of)) for of in zip(self._prefixes, trees, strict=True)]

    def _logits(self, prefix: list[int], tree: TokenTree | None) -> Tensor:
        if tree is None:
            return torch.empty((0, self.vocab_size), dtype=torch.float64)
        paths = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
        return torch.as_tensor(np.stack([self.after(prefix + path) for path in paths]))

    def commit(self, paths: Sequence[IntArray]) -> None:
        for prefix, tree, path in zip(self._prefixes, self._trees, paths, strict=True):
            if tree is not None:
                prefix.extend(tree.tokens[path].tolist())
