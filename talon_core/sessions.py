"""How a target or a drafter sets itself up for decoding."""

from abc import abstractmethod
from contextlib import AbstractContextManager


class RepeatableSession(AbstractContextManager[object]):
    """A session that a generation may leave after a round and enter again for the next one.

    Where a consumer is given control between rounds, nothing must be left entered: he may never come back. Sessions of
    another kind are made anew for each round.
    """

    @abstractmethod
    def again(self) -> AbstractContextManager[object]:
        """The same session for a further round; what setting up found out the first time is not looked at anew.

        It must still leave everything as it is then, which need not be as it was the first time.
        """


class WatchfulSession(RepeatableSession):
    """A session that compares a model's weights with what it has of them, whenever it is entered and not again.

    Attributes:
        changes: how often it has found a weight to be another one.
    """

    changes: int = 0

    @abstractmethod
    def watches(self, weight: object) -> bool:
        """Whether it compares every number of this tensor."""
