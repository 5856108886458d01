"""The interface of drafters: what may come next at each node of a growing tree."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.tree import IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor

    from talon_core.target import Target


FINAL_STATE = -1
"""The hidden state that enters the LM head, in the place of a layer's number."""


@attrs.frozen(eq=False)
class Prompt:
    """One sequence as the drafter first sees it. The arrays are the drafter's own; the features are read only.

    Attributes:
        ids: the prompt, shape `(prompt,)`, int64. Its last token is the root of the first tree.
        features: the target's hidden states at all prompt tokens but the last, shape `(prompt - 1, features)`, in
            the target's dtype and on its device; None if the drafter asked for none.
    """

    ids: IntArray
    features: "Tensor | None" = None


@attrs.frozen(eq=False)
class Committed:
    """What one round has added to a sequence, as the drafter is told. As in `Prompt`, features are read only.

    Attributes:
        tokens: the new tokens, shape `(new,)`, int64; the last of them is the next root.
        nodes: the nodes of the *drafted* tree along which they were accepted, the root's 0 first; shape `(path,)`
            with `path <= new`, int64.
        features: the target's hidden states at the accepted nodes, the old root first, shape `(new, features)`;
            None if the drafter asked for none.
    """

    tokens: IntArray
    nodes: IntArray
    features: "Tensor | None" = None


class Drafter(ABC):
    """Proposes next tokens for the nodes of draft trees, for a batch of sequences at once.

    The decoder calls `begin` with the prompts; then, each round, `propose` once per layer, first for the roots, and
    `commit` with what was accepted. Every method takes one entry per sequence, in the same order.
    """

    max_depth: int | None = None
    """Deepest token it can draft, counted from the root at 0; None if there is no limit."""

    passes: int = 0
    """Forward passes of a draft model since the drafter was opened; 0 for drafters without a model."""

    def session(self) -> AbstractContextManager[object]:
        """Entered by the decoder while it decodes, after the target's session and as often; see `Target.session`."""
        return nullcontext()

    def describe(self) -> Mapping[str, object]:
        """What was recognised of its files, for `talon doctor`: flags and sizes by name."""
        return {}

    @abstractmethod
    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Start new sequences; whatever was known of earlier ones is forgotten."""

    @abstractmethod
    def propose(
        self,
        trees: Sequence[TokenTree],
        frontiers: Sequence[IntArray],
        widths: Sequence[int],
        choices: Sequence[Choices],
    ) -> list[Candidates]:
        """The best next tokens at each frontier node.

        Args:
            trees: the trees so far.
            frontiers: for each tree the nodes to draft from, int64, read only, none of them drafted from before in
                this round. Their parents were drafted from. In a batch, a finished tree's frontier is empty and its
                answer is not read.
            widths: for each tree how many candidates a node are wanted, at least 1. A drafter may return fewer
                columns if it knows no more.
            choices: for each tree the drafter's own randomness, which also stands in `Candidates.choices` until the
                decoder puts the policy's there. Neither tells what the other, or the rule, will draw.

        Returns:
            One `Candidates` per tree, rows in the order of its frontier.
        """

    @abstractmethod
    def commit(self, committed: Sequence[Committed]) -> None:
        """Take note of what was accepted; the tree is forgotten and the last new token is the next root.

        A sequence that is over, while others of its batch go on, gets no new tokens, and its frontiers stay empty.
        """


class DrafterSpec(ABC):
    """A drafter's options, as an `attrs.frozen` class, and how to open it for a target.

    This is what plugins register: the options are read by the command line, the docs and the errors; the `Drafter`
    that `open` returns holds weights, caches and indices.
    """

    name: ClassVar[str]
    """What the drafter is called in the registry: lower case, with dashes."""

    def features(self, num_layers: int) -> tuple[int, ...]:
        """Which hidden states it wants of a target with so many layers.

        State 0 is what enters the first layer, state `i` what layer `i - 1` returns, without the final norm;
        `FINAL_STATE` is what enters the LM head, after the final norm.
        """
        return ()

    @classmethod
    def of_files(cls, path: str) -> "DrafterSpec | None":
        """The options for a drafter of this kind whose files are at `path`; None if they are not of this kind.

        `talon doctor --drafter PATH` asks every registered drafter.

        Args:
            path: a folder or Hugging Face id.

        Raises:
            ValueError: if there are no files, or they are of this kind and cannot be used; the sentence says why.
        """
        return None

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        """Where this drafter, with its default options, stands among those that are ready for a model.

        The drafter `auto` is the one of the highest rank. Those that need nothing but the text have rank 0; a drafter
        that was trained for this very model has more, the more tokens a round it brings.

        Args:
            model: a transformers causal LM.

        Returns:
            The rank, or None for a drafter that is not ready, or should be asked for by name.
        """
        return None

    @abstractmethod
    def open(self, target: "Target") -> Drafter:
        """Load what is needed to draft for `target`.

        Raises:
            ValueError: if the drafter does not fit the target; the sentence says why.
        """
