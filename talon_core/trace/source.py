"""Whose offers a text is replayed with: those that were recorded, or those of a drafter that is asked again."""

from talon_core.drafter import Committed, Drafter
from talon_core.engine.offers import Offers, RecordedOffers
from talon_core.errors import blaming
from talon_core.rounds import Round
from talon_core.trace.drafter import TraceDrafter
from talon_core.tree import TokenTree


class Source:
    """A drafter that reads texts alone, and is asked again.

    Attributes:
        offers: how it is asked.
        drafts: whether what it does here takes what it takes when one decodes.
        drafter: it; its slot 0 is open for the text.
    """

    offers: type[Offers] = Offers
    drafts = True

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    def outside(self, drafted: TokenTree) -> int:
        """Questions that were asked for a tree as it was drafted, and not answered."""
        return 0

    def commit(self, round_: Round) -> None:
        """A round is over, and the text goes on.

        Raises:
            PluginError: if the drafter fails; the message names it.
        """
        nodes = round_.path.copy() if round_.drafted is None else round_.drafted.follow(round_.tokens[:-1])
        with blaming("drafter", self.drafter, "commit"):
            self.drafter.commit({0: Committed(round_.tokens.copy(), nodes)})

    def close(self) -> None:
        """The text is over, or something went wrong."""


class Recorded(Source):
    """What was recorded."""

    offers = RecordedOffers
    drafts = False

    def __init__(self, drafter: TraceDrafter, vocab_size: int) -> None:
        super().__init__(drafter)
        self._recorded, self._vocab_size = drafter, vocab_size

    def outside(self, drafted: TokenTree) -> int:
        return self._recorded.outside(drafted)

    def commit(self, round_: Round) -> None:
        self._recorded.go_on(len(round_.tokens))

    def close(self) -> None:
        """What went wrong where the file was changed is the file's fault.

        Raises:
            ValueError: if it was.
        """
        self._recorded.check(self._vocab_size)
