"""A session of a drafter's own modules that notices when these are others than before."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType

from torch import nn

from talon_core.runtime.modules import modules_of, recorded_parts
from talon_core.sessions import RepeatableSession


class WatchedModules(RepeatableSession):
    """Enters another session, and tells before where modules, hooks or tensors were exchanged since the last time.

    Args:
        modules: what is watched.
        inside: the session.
        changed: is called where something has changed: what was recorded of them goes on with what there was before.
    """

    def __init__(
        self, modules: Iterable[nn.Module], inside: AbstractContextManager[object], changed: Callable[[], None]
    ) -> None:
        self._modules = [*modules]
        self._inside = inside
        self._changed = changed
        self._parts: list[object] | None = None

    def __enter__(self) -> object:
        parts = [part for module in self._modules for part in recorded_parts(modules_of(module))]
        if self._parts is not None and parts != self._parts:
            self._changed()
        self._parts = parts
        return self._inside.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._inside.__exit__(kind, error, traceback)

    def again(self) -> AbstractContextManager[object]:
        return self._inside.again() if isinstance(self._inside, RepeatableSession) else self._inside
