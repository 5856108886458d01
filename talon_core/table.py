"""A target and a drafter given by tables: tiny, in float64, and exact, for whoever enumerates every outcome."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Committed, Drafter, Prompt
from talon_core.target import NodeOutputs, Target
from talon_core.tree import FloatArray, IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor


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
        import torch

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

    def prefill(self, prompts: Sequence[IntArray], max_lengths: Sequence[int]) -> list["Tensor | None"]:
        self._prefixes = [prompt[:-1].tolist() for prompt in prompts]
        return [None] * len(prompts)

    def verify(self, trees: Sequence[TokenTree | None]) -> list[NodeOutputs]:
        self.passes += 1
        self._trees = list(trees)
        return [NodeOutputs(self._logits(*of)) for of in zip(self._prefixes, trees, strict=True)]

    def _logits(self, prefix: list[int], tree: TokenTree | None) -> "Tensor":
        import torch

        if tree is None:
            return torch.empty((0, self.vocab_size), dtype=torch.float64)
        paths = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
        return torch.as_tensor(np.stack([self.after(prefix + path) for path in paths]))

    def commit(self, paths: Sequence[IntArray]) -> None:
        for prefix, tree, path in zip(self._prefixes, self._trees, paths, strict=True):
            if tree is not None:
                prefix.extend(tree.tokens[path].tolist())


def _laws(given: Any) -> FloatArray:
    laws: FloatArray = np.array(given, dtype=np.float64, ndmin=2)
    laws.flags.writeable = False
    return laws


def path_number(path: Iterable[int]) -> int:
    """A number that hangs on every token of a path, for tables to be looked up by."""
    mixed = 0
    for token in path:
        mixed = (mixed * 31 + token + 1) % 2**32
    return mixed


class Memoryless(Drafter):
    """A drafter that looks at nothing but each tree's own paths."""

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """It needs no prompt."""

    def propose(
        self,
        trees: Sequence[TokenTree],
        frontiers: Sequence[IntArray],
        widths: Sequence[int],
        choices: Sequence[Choices],
    ) -> list[Candidates]:
        return [self.offer(*each) for each in zip(trees, frontiers, widths, choices, strict=True)]

    @abstractmethod
    def offer(self, tree: TokenTree, frontier: IntArray, width: int, choices: Choices) -> Candidates:
        """As `propose`, for one tree."""

    def commit(self, committed: Sequence[Committed]) -> None:
        """It remembers nothing."""


@attrs.frozen(eq=False)
class TableDrafter(Memoryless):
    """Draws the law after each path from a table, always the same one after the same path. All it returns is read only.

    Attributes:
        laws: the table, shape `(tables, vocab)`, float64, each row summing to 1. Which row holds after a path is
            arbitrary (`path_number`), not the last token's. With one row the drafter does not look at the path at all.
        knows: most candidates it offers after a node; None for all that have some probability.
        fills: whether rows are padded to the width asked for; otherwise to the longest of them.
        excess: added to each log-probability, as rounding in half precision may do, at least 0.
    """

    laws: FloatArray = attrs.field(converter=_laws)
    knows: int | None = None
    fills: bool = True
    excess: float = 0.0

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.laws.shape[1])

    def law_after(self, path: Iterable[int]) -> FloatArray:
        """The law after the tokens of `path`, the root's first, shape `(vocab,)`, float64."""
        law: FloatArray = self.laws[path_number(path) % len(self.laws)]
        return law

    def offer(self, tree: TokenTree, frontier: IntArray, width: int, choices: Choices) -> Candidates:
        if not len(frontier):  # this tree is finished; others of the batch are not
            none = np.empty((0, 1))
            return Candidates(frontier, none.astype(np.int64), none, none, choices)
        laws = self.laws[
            [path_number(tree.tokens[tree.path(node)].tolist()) % len(self.laws) for node in frontier.tolist()]
        ]  # (frontier, vocab)
        known = width if self.knows is None else min(width, self.knows)
        best = np.argsort(-laws, axis=1, kind="stable")[:, :known]
        probs = np.take_along_axis(laws, best, axis=1)
        if not self.fills:
            width = max(1, int((probs > 0).sum(axis=1).max()))
            best, probs = best[:, :width], probs[:, :width]
        tokens, logp = np.full((len(frontier), width), -1), np.full((len(frontier), width), -np.inf)
        tokens[:, : best.shape[1]] = np.where(probs > 0, best, -1)
        with np.errstate(divide="ignore"):
            logp[:, : best.shape[1]] = np.log(probs) + self.excess
        path_logp = tree.path_logp[frontier][:, None] + logp
        for array in (tokens, logp, path_logp):
            array.flags.writeable = False
        return Candidates(frontier, tokens, logp, path_logp, choices, law=lambda row: laws[row])
