"""Plugins' sessions, so that none of them can make an error disappear."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from talon_core.errors import PluginError, blaming_bugs, naming


class Session(AbstractContextManager[None]):
    """Enters what a `session` method returns and leaves it again; an error that is raised inside always gets out.

    Args:
        kind: what the object is, as errors call it: "drafter" or "target".
        owner: whom errors name.
        part: whose `session` is entered; the owner by default.

    Raises:
        PluginError: on entering, if `session` fails or returns no context manager; on leaving, if that fails.
    """

    def __init__(self, kind: str, owner: object, part: Any = None) -> None:
        self._kind = kind
        self._owner = owner
        self._part: Any = owner if part is None else part
        self._session: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        with blaming_bugs(self._kind, self._owner, "session"):
            session = self._part.session()
            if not isinstance(session, AbstractContextManager):
                raise PluginError(
                    f"{naming(self._kind, self._owner)} returned {type(session).__name__} from session; "
                    "it must return a context manager, as contextlib.nullcontext()"
                )
            session.__enter__()
        self._session = session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None
        with blaming_bugs(self._kind, self._owner, "session"):
            try:
                suppressed = self._session.__exit__(kind, error, traceback)
            except BaseException as own:
                if own is error:  # handed on, which is what happens anyway
                    return
                raise
        if suppressed and error is not None:
            error.add_note(f"{naming(self._kind, self._owner)} would have suppressed this error in its session")
