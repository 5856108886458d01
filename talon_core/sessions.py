"""How a target and a drafter are set up for decoding, and how that is done again for each round at little cost."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from talon_core.errors import blaming

if TYPE_CHECKING:
    from talon_core.drafter import Drafter, DrafterSpec
    from talon_core.target import Target


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


class Sessions:
    """The sessions of a generation's target and drafter, entered together as often as need be.

    Args:
        target: its session comes first.
        drafter: None if there is none.
        spec: names the drafter where its session fails.
    """

    def __init__(self, target: "Target", drafter: "Drafter | None", spec: "DrafterSpec | None") -> None:
        self._parts: list[Target | Drafter] = [target] if drafter is None else [target, drafter]
        self._spec = spec
        self._known: list[AbstractContextManager[object] | None] = [None] * len(self._parts)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Both in session; an error inside comes out, whatever a session does with it.

        Raises:
            BusyError: if a model is being decoded at this moment.
            PluginError: if the drafter's session fails.
        """
        failure: BaseException | None = None
        try:
            with ExitStack() as stack:
                stack.enter_context(self._of(0))
                if len(self._parts) > 1:
                    with blaming("drafter", self._spec, "session", but=_is_busy):
                        stack.enter_context(self._of(1))
                try:
                    yield
                except BaseException as error:
                    failure = error
                    raise
            if failure is not None:  # a session has swallowed it, and what came out is not whole
                raise failure
        finally:
            del failure  # its traceback holds this frame

    def _of(self, part: int) -> AbstractContextManager[object]:
        known = self._known[part]
        if isinstance(known, RepeatableSession):
            return known.again()
        made = self._known[part] = self._parts[part].session()
        return made


def _is_busy(error: Exception) -> bool:
    return isinstance(error, BusyError)
