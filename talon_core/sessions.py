"""How a target or a drafter sets itself up for decoding, and how that is entered once for each round at little cost."""

from abc import abstractmethod
from contextlib import AbstractContextManager


class BusyError(RuntimeError):
    """A model is being decoded at this moment, and cannot be decoded by somebody else as well."""


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
