"""What goes wrong for some sequences of a step, and leaves the others alone."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType


class Faults(dict[int, Exception]):
    """What has failed, by slot."""

    def of(self, slots: Iterable[int]) -> "_Watched":
        """An error inside is that of these slots, and goes no further; Ctrl-C does."""
        return _Watched(self, slots)


class _Watched(AbstractContextManager[None, bool]):
    """A class and no generator, because a round enters it several times a layer."""

    __slots__ = ("_faults", "_slots")

    def __init__(self, faults: Faults, slots: Iterable[int]) -> None:
        self._faults, self._slots = faults, slots

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._faults.update(dict.fromkeys(self._slots, error))
        return True
