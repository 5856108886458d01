"""Who runs what is prepared: the interface of workers, and one that runs it when it is told to."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import attrs

from talon_core.drafter import Drafter
from talon_core.engine.ahead.prepared import Prepared
from talon_core.engine.ahead.preparing import Job, Preparing
from talon_core.engine.ahead.whole import Whole
from talon_core.rounds import Span
from talon_core.schedule import Schedule

NOTHING: Mapping[int, Prepared] = {}


@attrs.frozen(eq=False)
class Stopped:
    """What a worker has done since it was told to prepare.

    Attributes:
        prepared: what is there, by slot.
        failure: what has gone wrong in the drafter, whose state nobody knows then; None if nothing has.
        faults: what has gone wrong for some sequences alone: a schedule's error, or a drafter's answer that is none.
        spans: the calls of the drafter, and what was waited for.
        passes: forward passes of a draft model.
    """

    prepared: Mapping[int, Prepared] = NOTHING
    failure: Exception | None = None
    faults: Mapping[int, Exception] = attrs.field(factory=dict)
    spans: Sequence[Span] = ()
    passes: int = 0


class Worker(ABC):
    """Prepares while the target verifies. `prepare` and `stop` are called in turn, by one thread.

    Attributes:
        drafter: who is asked where something is needed that was not prepared, and who is told of the texts: the real
            drafter, or what stands for it where that is elsewhere. It is asked only while nothing is prepared.
        lost: whether the drafter cannot be reached any more; it may come back.
        losses: how often it was lost: what it knew of any text before is not known any more.
        why: it was lost the last time.
        now: the clock by which it tells spans, in seconds; the engine sets it to its own. A thread of the worker's may
            ask it while the one that decodes does.
    """

    drafter: Drafter
    now: Callable[[], float] = perf_counter
    lost: bool = False
    losses: int = 0
    why: str = ""

    @abstractmethod
    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        """Begin to prepare; returns at once."""

    @abstractmethod
    def stop(self) -> Stopped:
        """Prepare no more: what was begun is ended, and no call of the drafter runs any longer."""

    def drafts_whole(self, tree: Whole) -> bool:
        """Whether the drafter, which is asked about the root of a tree next, will answer for its further layers at the
        same time, so that asking for these takes nothing then. By default it is asked layer by layer."""
        return False

    def hurry(self, hurried: bool) -> None:  # noqa: B027 - most are never waited for
        """The user has asked for the end: `stop` waits for a moment at most until this is said to be over, and so does
        whatever the drafter is asked in another process. What does not come is lost, as where it takes too long."""

    def wake(self) -> None:  # noqa: B027 - most hold nothing
        """A session is entered, by the thread that decodes: what the worker takes from that thread's passes is taken
        now, and given back by `rest`, which the same thread calls."""

    def rest(self) -> None:  # noqa: B027 - most hold nothing
        """A session is left: nothing may run on behind it. Nothing is being prepared."""


class InLine(Worker):
    """Prepares nothing until it is stopped, and then so much as it is told: with no thread, for tests.

    Args:
        drafter: likewise.
        calls: how many calls of the drafter are made, asked each time; None for all there are.
    """

    def __init__(self, drafter: Drafter, calls: Callable[[], int | None] = lambda: None) -> None:
        self.drafter = drafter
        self._calls = calls
        self._preparing: Preparing | None = None

    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        self._preparing = Preparing(self.drafter, schedule, jobs, self.now)

    def stop(self) -> Stopped:
        preparing, self._preparing = self._preparing, None
        if preparing is None:
            return Stopped()
        calls, spans = self._calls(), list[Span]()
        try:
            while (calls is None or calls > 0) and preparing.timed_step(spans):
                calls = None if calls is None else calls - 1
        except Exception as error:
            return Stopped(failure=error, spans=spans)
        return Stopped(preparing.prepared(), None, preparing.faults, spans, preparing.passes)
