"""The interface of targets: the model whose output must not change."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import attrs

from talon_core.rule import Accepted
from talon_core.tree import IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor, device


@attrs.frozen(eq=False)
class NodeOutputs:
    """What one forward pass says about every node of one tree.

    Attributes:
        logits: raw scores of the next token, shape `(nodes, vocab)`, on the target's device.
        features: the hidden states that were asked for, concatenated, shape `(nodes, features)`; None if none were.
    """

    logits: "Tensor"
    features: "Tensor | None" = None


@attrs.frozen(eq=False)
class Walked:
    """What became of one tree that was verified greedily.

    Attributes:
        accepted: the longest path of the target's most likely tokens; empty for a sequence without a tree.
        features: as in `NodeOutputs`, at the accepted nodes, shape `(path, features)`.
    """

    accepted: Accepted
    features: "Tensor | None" = None


class Target(ABC):
    """Runs the target model over committed tokens and draft trees, for a batch of sequences at once.

    The decoder calls `prefill` with the prompts, then, each round, `verify` with one tree per sequence and `commit`
    with the accepted nodes. The cache holds every committed token but the last, which is the next tree's root.
    """

    vocab_size: int
    """Number of token ids; ids are 0 to `vocab_size - 1`."""

    device: "device"
    """Where its logits are."""

    context_length: int | None
    """Most tokens of prompt and output together; None if there is no limit."""

    context_reason: str | None = None
    """Why `context_length` is less than the model's configuration says, as a clause; None if it is not."""

    passes: int = 0
    """Forward passes for trees since the target was made; prefills do not count."""

    claim: object = None
    """Whose prompts were read last: the decoder sets it, so that a generation notices when it was displaced."""

    def session(self) -> AbstractContextManager[object]:
        """Entered by the decoder while it decodes; a target may set itself up here and clean up after it.

        It is entered once for a whole generation, or, where somebody is given control between rounds, for each round;
        a `RepeatableSession` makes that cheap.
        """
        return nullcontext()

    @abstractmethod
    def prefill(self, prompts: Sequence[IntArray], max_lengths: Sequence[int]) -> list["Tensor | None"]:
        """Start new sequences: run all tokens of each prompt but the last.

        Args:
            prompts: token ids, each of shape `(prompt,)`, int64, at least one token.
            max_lengths: for each prompt the tokens to make room for: prompt, output and a tree. A larger tree may come.

        Returns:
            For each prompt the features of these tokens, shape `(prompt - 1, features)`, or None if none are kept.
        """

    @abstractmethod
    def verify(self, trees: Sequence[TokenTree | None]) -> list[NodeOutputs]:
        """Run each sequence's tree over its cache, in one forward pass.

        A sequence that is over, while others of its batch go on, comes without a tree. It should cost nothing, and
        what is returned for it is not read.
        """

    @abstractmethod
    def commit(self, paths: Sequence[IntArray]) -> None:
        """Keep the cache rows of these nodes of the last verified trees, root first, and forget the other nodes.

        The path of a sequence that came without a tree is empty.
        """


class GreedyTarget(Target):
    """A target that can accept by itself at temperature 0, where its device does it without asking the host."""

    @property
    @abstractmethod
    def walks(self) -> bool:
        """Whether it can."""

    @abstractmethod
    def verify_greedily(self, trees: Sequence[TokenTree | None], ends: frozenset[int]) -> list[Walked]:
        """`verify`, the walk along the most likely tokens, and `commit`, in one.

        Args:
            trees: as for `verify`.
            ends: tokens that end the text; the walk goes no further than to one of them.
        """
