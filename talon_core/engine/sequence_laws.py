"""The target's laws at the nodes of a verified tree, as a sequence's request warps them."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from talon_core.engine.processors import prefix_free
from talon_core.engine.token_buffer import TokenBuffer
from talon_core.laws import Laws, check_node
from talon_core.sampling import Processor, Sampling
from talon_core.tree import TokenTree

Scores = TypeVar("Scores")
Found = TypeVar("Found")


@attrs.frozen(eq=False)
class Warping:
    """How a sequence's scores become laws.

    Args:
        sampling: how the user wants tokens chosen.
        prefix: every committed token; the last of them is the root of the tree that is verified.
        eos: token ids that end the text.

    Attributes:
        alone: the processors, if they look at scores alone; None where one of them may look at more, or is a list,
            which may be given others in the middle of the text.
    """

    sampling: Sampling
    prefix: TokenBuffer
    eos: frozenset[int] = frozenset()
    alone: tuple[Processor, ...] | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        found = prefix_free(self.sampling.processors)
        may_change = isinstance(found, str) or any(isinstance(one, list) for one in self.sampling.processors)
        object.__setattr__(self, "alone", None if may_change else found)


@attrs.frozen(eq=False)
class SequenceLaws(Laws, Generic[Scores]):
    """The target's laws at a verified tree, warped with the true prefix of each node that is visited.

    Processors are called once per visited node, in the order of the walk, with exactly the token ids that plain
    decoding would show them there; so processors that look at the prefix work as they do there. So do those that
    remember their calls, if the rule does not look ahead.

    Args:
        tree: the verified tree.
        logits: raw scores, shape `(nodes, vocab)`.
        warping: the sequence's own.

    Attributes:
        failures: what processors have raised: the user's own errors, not those of the rule that asked.
    """

    _tree: TokenTree
    _logits: Scores
    _warping: Warping
    failures: list[BaseException] = attrs.field(factory=list, init=False)
    _warped: dict[int, Scores] = attrs.field(factory=dict, init=False)

    @abstractmethod
    def _warp(self, node: int) -> Scores:
        """The scores after a node, processed, shape `(vocab,)`."""

    def _scores(self, node: int) -> Scores:
        return self._kept(self._warped, node, self._warp)

    def _kept(self, known: dict[int, Found], node: int, find: Callable[[int], Found]) -> Found:
        """What is known of a node, or found now; what is raised then is no error of who asks."""
        check_node(self._tree, node)
        if node not in known:
            try:
                known[node] = find(node)
            except BaseException as error:
                self.failures.append(error)
                raise
        return known[node]

    def _failed(self, node: int) -> ValueError:
        error = no_law(self._warping.prefix.length + int(self._tree.depths[node]))
        self.failures.append(error)
        return error

    def ends(self, token: int) -> bool:
        return token in self._warping.eos

    @property
    def asked(self) -> int:
        """At how many nodes somebody has asked for the law or a token."""
        return len(self._warped)


def no_law(tokens: int) -> ValueError:
    """The error of a law that is none, after so many tokens."""
    return ValueError(
        f"there is no law to draw from after {tokens} tokens: "
        "the scores hold NaN or infinity, or the processors forbid every token"
    )
