"""The session of a drafter that goes on while the target verifies: nothing is prepared outside of it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from talon_core.basics.waiting import HURRIED
from talon_core.sessions import RepeatableSession


class AheadSession(RepeatableSession):
    """The real drafter's session; when it is left, what is prepared ends first.

    Args:
        make: gives the real drafter's session.
        wake: is called when it is entered.
        rest: ends what is prepared, when it is left, and is told whether the user has asked for the end.
        known: a session of the real drafter that was entered before, where this is to be the same one again.
    """

    def __init__(
        self,
        make: Callable[[], AbstractContextManager[object]],
        wake: Callable[[], None],
        rest: Callable[[bool], None],
        known: AbstractContextManager[object] | None = None,
    ) -> None:
        self._make, self._wake, self._rest, self._known = make, wake, rest, known
        self._inside: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        again = self._known.again() if isinstance(self._known, RepeatableSession) else None
        self._inside = again if again is not None else self._make()
        if again is None:
            self._known = self._inside
        self._inside.__enter__()
        try:
            self._wake()
        except BaseException as error:  # nobody leaves what was not entered
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._inside is not None
        try:
            self._rest(kind is not None and issubclass(kind, HURRIED))
        finally:
            suppressed = self._inside.__exit__(kind, error, traceback)
        return suppressed

    def again(self) -> "AheadSession":
        return AheadSession(self._make, self._wake, self._rest, self._known)
