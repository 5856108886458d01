"""A worker that prepares in a thread of this process."""

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter
from typing import Any

from talon_core.basics.numerals import rounded
from talon_core.basics.waiting import uninterrupted
from talon_core.drafter import Drafter
from talon_core.engine.ahead.patience import HURRIED_WORDS, Patience
from talon_core.engine.ahead.preparing import Job, Preparing
from talon_core.engine.ahead.worker import Stopped, Worker
from talon_core.rounds import Span
from talon_core.schedule import Schedule

LOG = logging.getLogger(__name__)


class _Task:
    """What the thread is to prepare.

    Attributes:
        stopping: set where no further call of the drafter is to be made.
        done: set where none is being made any more.
        failure: what the drafter has raised.
        seconds: that each call took, whatever the engine's clock says of it.
    """

    def __init__(self, preparing: Preparing) -> None:
        self.preparing = preparing
        self.spans: list[Span] = []
        self.seconds: list[float] = []
        self.stopping = Event()
        self.done = Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        """Prepare until all is done, or it is stopped."""
        try:
            while not self.stopping.is_set():
                started = perf_counter()
                if not self.preparing.timed_step(self.spans):
                    break
                self.seconds.append(perf_counter() - started)
        except Exception as error:
            self.failure = error
        finally:
            self.done.set()


class ThreadWorker(Worker):
    """Prepares in a thread, which is there within a session; on a GPU in a stream of its own.

    It pays where the target's passes leave Python and the processor to others: on a GPU, or for a drafter that looks
    up. Calls of the drafter are never broken off: `stop` waits until the present one is over. One that takes many times
    as long as any before it is given up, and the drafter with it, until it comes back.

    Args:
        drafter: likewise.
        patience: how long a call may take.
    """

    def __init__(self, drafter: Drafter, patience: Patience | None = None) -> None:
        self.drafter = drafter
        self._patience = patience if patience is not None else Patience()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._task: _Task | None = None
        self._stuck: _Task | None = None
        self._beside = ExitStack()
        self._stream: Any = None

    @property
    def lost(self) -> bool:  # type: ignore[override]  # whether the thread has come back is seen when it is asked
        """Whether a call of the drafter has not come back."""
        if self._stuck is not None and self._stuck.done.is_set():
            self._stuck = None
            self._beside.close()
        return self._stuck is not None

    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        stream = self._own_stream()
        task = _Task(Preparing(self.drafter, schedule, jobs, self.now))
        with uninterrupted():
            if self._thread is None:
                self._tasks = SimpleQueue()
                thread = Thread(target=_serve, args=(self._tasks, stream), name="talon-prepares", daemon=True)
                thread.start()
                self._thread = thread
            self._task = task
            self._tasks.put(task)

    def _own_stream(self) -> Any:
        """A stream of the current GPU's, which begins where the present one is; None without a GPU."""
        if "torch" not in sys.modules:
            return None
        import torch

        from talon_core.runtime.recording import used_beside

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types here
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
        self._stream.wait_stream(torch.cuda.current_stream())
        self._beside.enter_context(used_beside())
        return self._stream

    def stop(self) -> Stopped:
        task = self._task
        if task is None:
            return Stopped()
        task.stopping.set()
        started = self.now()
        patience = self._patience.seconds("prepare")
        if not self._patience.has_come(task.done.wait, patience):
            with uninterrupted():
                self._task = None
                self._stuck, self._thread = task, None  # a new one is made where it is wanted
                self.losses += 1
                in_time = f"in {rounded(patience)} s" if not self._patience.is_hurried else HURRIED_WORDS
                self.why = f"a call has not come back {in_time}"
                self._tasks.put(None)
            return Stopped(failure=TimeoutError(self.why))
        self._task = None
        self._beside.close()
        if self._stream is not None:
            import torch

            torch.cuda.current_stream().wait_stream(self._stream)
        self._patience.saw("prepare", task.seconds)
        spans = [*task.spans, Span("wait", started, self.now())]
        if task.failure is not None:
            return Stopped(failure=task.failure, spans=spans)
        preparing = task.preparing
        return Stopped(preparing.prepared(), None, preparing.faults, spans, preparing.passes)

    def hurry(self, hurried: bool) -> None:
        self._patience.hurry(hurried)

    def rest(self) -> None:
        if self._task is not None:  # its end was asked for, and that was interrupted
            self.stop()
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None


def _serve(tasks: "SimpleQueue[_Task | None]", stream: Any) -> None:
    """What the thread does. It knows nothing of the worker, which may be given up."""
    with _on(stream):
        while (task := tasks.get()) is not None:
            task.run()


def _on(stream: Any) -> AbstractContextManager[Any]:
    """While entered, the current GPU works on a stream; None is any device as it is."""
    if stream is None:
        return nullcontext()
    import torch

    return torch.cuda.stream(stream)
