"""The interface of policies that also choose which of several drafters is asked."""

from abc import abstractmethod
from collections.abc import Sequence

from talon_core.policy import TreePolicy


class SourceChooser(TreePolicy):
    """A policy that also says, before each tree, which of a drafter's sources is asked for it.

    The engine calls `source` before it asks for the tree's first `width`, where the drafter has `Drafter.sources`,
    whose names are in `SequenceInfo.sources`. All layers of the tree are that one's. A policy may learn from what was
    accepted and from what passes took, and a drafter may not, whose answers follow from the text: so it is the policy
    who chooses. It is asked one by one, and not with others, where sequences share a pass.
    """

    @property
    @abstractmethod
    def chooses_source(self) -> bool:
        """Whether it does so with its options: then a drafter without sources is refused."""

    @abstractmethod
    def source(self) -> int | None:
        """Who is asked for the next tree: an index into `SequenceInfo.sources`, or None for all of them together."""


def chooses_source(policy: object) -> bool:
    """Whether it is a policy that chooses who drafts: within another one, that one's choice would not be asked for."""
    return isinstance(policy, SourceChooser) and policy.chooses_source


def check_sources(policy: TreePolicy, sources: Sequence[str], of: str) -> None:
    """Refuse a policy that would choose where there is nothing to choose from.

    Args:
        policy: it.
        sources: `Drafter.sources`.
        of: whose they are, as the sentence goes on.

    Raises:
        ValueError: if it would.
    """
    if len(sources) < 2 and chooses_source(policy):
        raise ValueError(
            f"the tree policy '{policy.name}' chooses among several drafters, and {of}; take a drafter that is made of "
            "several, as hybrid:of=eagle3+ngram, and the schedule sync"
        )
