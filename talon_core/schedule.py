"""The interface of schedules: who waits for whom, the target for the drafter, or neither for the other."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs
import numpy as np

from talon_core.drafter import DrafterSpec
from talon_core.tree import FloatArray, IntArray, TokenTree


@attrs.frozen
class Outcome:
    """One way in which the verification of a tree may end.

    Attributes:
        node: the last node of the accepted path.
        token: the target's own token after it: it is no child of `node` in the tree, or the path would go on.
    """

    node: int
    token: int


@attrs.frozen(eq=False)
class Outlook:
    """What is known of a tree while the target verifies it. The arrays are read only.

    Attributes:
        tree: as it is verified.
        tokens: by node, the likeliest next tokens by the drafter, best first, shape `(known,)`, int64. Nodes that the
            drafter knows nothing about have no entry.
        logp: likewise, their natural log-probabilities given the path, same shapes, float64.
        accepted: drafted tokens of this text that were accepted in the rounds before.
        tested: places at which one could have been.
        hits: rounds of this text whose beginning was prepared.
        misses: rounds for which something was prepared, and something else came.
    """

    tree: TokenTree
    tokens: Mapping[int, IntArray]
    logp: Mapping[int, FloatArray]
    accepted: int = 0
    tested: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def acceptance(self) -> float:
        """The share of tested places at which a drafted token was accepted, in (0, 1); 1/2 as long as there were none.

        It is the mean of the law of a probability of which so much was seen (Laplace's rule of succession).
        """
        return (self.accepted + 1) / (self.tested + 2)

    def after(self, node: int) -> tuple[IntArray, FloatArray]:
        """The known tokens after a node that no child of it holds, best first, and the log-probabilities of outcomes.

        By the drafter's law the path ends at `node` and goes on with token `t` with probability
        `exp(path_logp[node] + logp[t])`: the target's token is `t`, and no child holds it.

        Args:
            node: of the tree.

        Returns:
            Tokens, shape `(outside,)`, int64, and natural log-probabilities, same shape, float64.
        """
        if node not in self.tokens:
            return np.empty(0, dtype=np.int64), np.empty(0)
        inside = self.tree.tokens[self.tree.parents == node]
        outside = ~np.isin(self.tokens[node], inside)
        return self.tokens[node][outside], self.tree.path_logp[node] + self.logp[node][outside]


class Schedule(ABC):
    """Decides what is prepared while the target verifies a tree, and what is done where something else comes.

    A round goes like this. The tree is drafted and sent to the target. Meanwhile `nodes` says where outcomes are looked
    for, the drafter is asked at those of these nodes where it was not asked yet, and `outcomes` says which ways the
    verification may end are prepared for: below each of them the drafter goes on, as far as the tree policy would
    probably have it asked. When the target is done, nothing more is prepared. If the outcome is one that was prepared
    for, the next tree is made of the answers that are there, by the tree policy, as always; where it wants to know more
    than that, `drafts_beyond` says whether the drafter is asked. If it is not, `drafts_on_miss` says what happens.

    What is prepared are the drafter's answers, not trees. They depend on the committed text, the drafter and the tree
    that is verified; whatever is drawn for a tree is drawn once its root is known. So no schedule changes what is
    decoded, only how fast: one that errs costs the preparation.

    Subclasses are `attrs.frozen` classes whose fields are their options. They keep nothing: one object serves all
    sequences.
    """

    name: ClassVar[str]
    """What the schedule is called in the registry: lower case, with dashes."""

    purpose: ClassVar[str] = ""
    """What it is for, in a few words, under which `talon list` shows it with others; without, under "other"."""

    paper: ClassVar[str] = ""
    """Where it was published, as "arXiv 2603.03251"; empty if nowhere."""

    prepares: ClassVar[bool] = True
    """False for one that never prepares anything: the engine drafts and verifies in turn then."""

    drafts_on_miss: ClassVar[bool] = True
    """Whether a tree is drafted for an outcome that was not prepared for, while the target waits. False verifies the
    root alone, and drafts meanwhile."""

    @property
    def instant(self) -> DrafterSpec | None:
        """Options of a drafter that drafts, in the place of the real one, where something else has come than was
        prepared for; None for none. The first tree of a text is always the real one's, as nothing could be prepared.

        The target waits for it, so it should take no time, as a look-up does. It must read texts alone
        (`DrafterSpec.reads_texts`). Where it knows nothing the root alone is verified, and the real drafter goes on
        meanwhile; `drafts_on_miss` is not asked. What was drafted at once is verified like any other tree.
        """
        return None

    @property
    def drafts_beyond(self) -> bool:
        """Whether the drafter is asked, while the target waits, where what was prepared for the outcome ends.

        By default it is. It has seen nothing of such a tree, so it is asked at all nodes above as well, layer by layer,
        which takes as long as drafting the tree anew. False verifies what is there, below the first layer.
        """
        return True

    @property
    def width(self) -> int:
        """How many next tokens it wants to know at each node, at least 1: the drafter is asked for as many, whatever
        the tree policy wants."""
        return 8

    def nodes(self, tree: TokenTree) -> IntArray:
        """The nodes whose next tokens `outcomes` wants to know: by default all.

        Args:
            tree: as it is verified; read only.

        Returns:
            Indices, shape `(wanted,)`, int64; the drafter is asked at their ancestors as well.
        """
        return np.arange(len(tree))

    @abstractmethod
    def outcomes(self, outlook: Outlook) -> Sequence[Outcome]:
        """The outcomes to prepare for, the most important first: time may end before all of them are.

        Args:
            outlook: the tree, and what is known of it.

        Returns:
            Different outcomes. Those that cannot come, as their token is a child of their node or ends the text, and
            those for which nothing can be drafted, are left out by the engine.
        """
