"""What a drafter offers a growing tree, and how far it is believed."""

from collections.abc import Mapping, Sequence

from talon_core.candidates import Candidates
from talon_core.drafter import Drafter, Frontier, Proposed
from talon_core.drawn import Drawn
from talon_core.engine.ahead.preparer import NOTHING_PREPARED, Preparations
from talon_core.engine.checked_candidates import checked_candidates
from talon_core.engine.checked_drafter import checked_proposal
from talon_core.errors import blaming
from talon_core.tree_arrays import ints


class Offers:
    """A drafter that may be anybody's: each answer is checked, and copied.

    Args:
        drafter: it.
        named: whom errors name; itself by default.
        preparations: what it prepares while the target verifies; by default nothing.
    """

    def __init__(
        self, drafter: Drafter, named: Drafter | None = None, preparations: Preparations = NOTHING_PREPARED
    ) -> None:
        self._drafter = drafter
        self._named = named if named is not None else drafter
        self._preparations = preparations

    def ask(self, frontiers: Sequence[Frontier], draws: Sequence[Mapping[int, Drawn]]) -> Proposed:
        """One answer for each of some frontiers, and what they took; their numbers are not looked at.

        Args:
            frontiers: as the engine knows them.
            draws: copies of their trees' draws, to be shown.

        Raises:
            PluginError: if the drafter fails, or answers something else; the message names it.
        """
        shown = [
            Frontier(one.slot, one.tree.copied(drawn), ints(one.nodes), one.width, one.source)
            for one, drawn in zip(frontiers, draws, strict=True)
        ]
        with blaming("drafter", self._named, "propose"):
            proposed = self._drafter.propose(shown)
        return checked_proposal(self._named, proposed, len(frontiers))

    @property
    def is_a_layer(self) -> bool:
        """Whether the latest `ask` has taken what a layer of the drafter takes: not where answers were there before."""
        return self._preparations.passed_on

    def checked(self, given: Candidates, asked: Frontier, vocab_size: int) -> Candidates:
        """One of the answers, if it keeps the contract.

        Args:
            given: it.
            asked: the frontier that it is for, as the engine knows it.
            vocab_size: the target's.

        Raises:
            PluginError: if it does not; the message names the drafter.
        """
        return checked_candidates(self._named, given, asked.tree, asked.nodes, vocab_size, asked.width)


class RecordedOffers(Offers):
    """A drafter of our own that repeats what was checked when it was recorded: it is believed."""

    def ask(self, frontiers: Sequence[Frontier], draws: Sequence[Mapping[int, Drawn]]) -> Proposed:
        return self._drafter.propose(frontiers)

    def checked(self, given: Candidates, asked: Frontier, vocab_size: int) -> Candidates:
        return given
