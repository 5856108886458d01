"""A target and a drafter in session: entered once for each round at little cost, and left whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from talon_core.errors import PluginError, blaming_bugs, naming
from talon_core.sessions import RepeatableSession

if TYPE_CHECKING:
    from talon_core.drafter import Drafter
    from talon_core.target import Target


class Session(AbstractContextManager[None]):
    """Enters what a `session` method returns and leaves it again; an error that is raised inside always gets out.

    Args:
        kind: what the object is, as errors call it: "drafter" or "target".
        owner: whom errors name.
        make: gives the session.

    Raises:
        PluginError: on entering, if that fails or gives no context manager; on leaving, if that fails.
    """

    def __init__(self, kind: str, owner: object, make: Callable[[], object]) -> None:
        self._kind = kind
        self._owner = owner
        self._make = make
        self._session: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        with blaming_bugs(self._kind, self._owner, "session"):
            session = self._make()
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


class Sessions:
    """The sessions of an engine's target and drafter, entered together as often as need be.

    Args:
        target: its session comes first.
        drafter: its session comes second.
        named: the drafter or its options, whom errors name where its session fails.
    """

    def __init__(self, target: "Target", drafter: "Drafter", named: object) -> None:
        self._parts: list[tuple[str, object, Target | Drafter]] = [
            ("target", target, target),
            ("drafter", named, drafter),
        ]
        self._known: dict[str, object] = {}

    @contextmanager
    def entered(self, again: bool = False) -> Iterator[None]:
        """Both in session; an error inside comes out, whatever a session does with it.

        Args:
            again: nothing is begun, only what was goes on: what can be entered again is not set up anew.

        Raises:
            BusyError: if a model is being decoded at this moment.
            PluginError: if a session fails.
        """
        with ExitStack() as stack:
            for kind, owner, part in self._parts:
                stack.enter_context(Session(kind, owner, partial(self._of, kind, part, again)))
            yield

    def _of(self, kind: str, part: "Target | Drafter", again: bool) -> object:
        known = self._known.get(kind)
        if again and isinstance(known, RepeatableSession):
            return known.again()
        made = self._known[kind] = part.session()
        return made
