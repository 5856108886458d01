"""The process beside: it hosts a drafter, answers what that is asked, and prepares until it is told to stop."""

import os
import pickle
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import attrs

from talon_core.basics.waiting import end_with
from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Part, Proposed
from talon_core.engine.ahead.preparing import Preparing
from talon_core.engine.ahead.shelf import Placed, Shelf
from talon_core.engine.ahead.spans import Spans
from talon_core.engine.ahead.worker import Stopped
from talon_core.errors import one_line

TOLD = ("open", "resume", "close")
"""What is told to the drafter as it comes."""


@attrs.frozen
class About:
    """What a hosted drafter says of itself."""

    max_depth: int | None
    uses_target: bool
    described: dict[str, Any]


@attrs.frozen(eq=False)
class Opened:
    """A drafter that is ready.

    Attributes:
        drafter: it.
        session: entered while it serves.
        device: where its features are to be.
    """

    drafter: Drafter
    session: AbstractContextManager[object]
    device: Any


def serve(connection: Connection, shelf: Shelf, parent: int, opened: Callable[[Any], "Opened"]) -> None:
    """Serve until the other end is closed.

    Args:
        connection: to the process that decodes.
        shelf: the memory that both share.
        parent: the number of that process.
        opened: from what it sends first to the drafter.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the other process, which ends this one
    end_with(parent)
    try:
        own = opened(pickle.loads(connection.recv_bytes()))
        hosted = _Hosted(own.drafter, own.device, shelf, connection)
        with own.session:
            _answer(connection, hosted.about())
            while True:
                hosted.serve(*pickle.loads(connection.recv_bytes()))
    except EOFError:
        return
    except Exception as error:
        with suppress(OSError):  # nobody listens any more, perhaps
            _answer(connection, error)


def _answer(connection: Connection, answer: Any, error: str = "raised") -> None:
    """Send an answer, or an error in a form that can be sent: "raised" by a call, or "lost" where nobody knows more."""
    if isinstance(answer, Exception):
        answer = (type(answer).__name__, one_line(answer))
        connection.send_bytes(pickle.dumps((error, answer)))
    else:
        connection.send_bytes(pickle.dumps(("done", answer)))


class _Hosted:
    """A drafter that another process asks."""

    def __init__(self, drafter: Drafter, device: Any, shelf: Shelf, connection: Connection) -> None:
        self.drafter = drafter
        self._device = device
        self._shelf = shelf
        self._connection = connection
        self._answers: list[Candidates] = []  # of this round, whose laws may be asked for

    def about(self) -> About:
        return About(self.drafter.max_depth, self.drafter.uses_target, dict(self.drafter.describe()))

    def serve(self, committed: Any, what: str, *given: Any) -> None:
        """Do what was asked, and answer.

        Args:
            committed: what was accepted since, for `commit`; None where nothing was.
            what: is asked.
            given: with what.
        """
        spans = Spans(perf_counter)
        if committed is not None:
            try:
                with spans.of("prepare"):
                    self.commit(committed)
            except Exception as error:
                _answer(self._connection, error, "lost")
                return
        if what == "prepare":
            self._prepare(spans, *given)
            return
        if what == "hear":
            _answer(self._connection, None)
            return
        try:
            _answer(self._connection, getattr(self, what)(*given) if what not in TOLD else self._told(what, *given))
        except Exception as error:
            _answer(self._connection, error)

    def _told(self, what: str, *given: Any) -> Any:
        return getattr(self.drafter, what)(*given)

    def read(self, parts: dict[int, tuple[int, int, Placed | None]]) -> None:
        """As `Drafter.read`, of features on the shelf."""
        self.drafter.read({slot: Part(start, count, self._taken(at)) for slot, (start, count, at) in parts.items()})

    def commit(self, committed: dict[int, tuple[Any, Any, Placed | None, Any]]) -> None:
        """As `Drafter.commit`, likewise."""
        self._answers.clear()
        self.drafter.commit(
            {
                slot: Committed(tokens, nodes, self._taken(at), answers)
                for slot, (tokens, nodes, at, answers) in committed.items()
            }
        )

    def _taken(self, placed: Placed | None) -> Any:
        return None if placed is None else self._shelf.take(placed).to(self._device)

    def propose(self, frontiers: Any) -> tuple[Proposed, int]:
        """What is offered, without laws, and the number of the first answer."""
        proposed = self.drafter.propose(frontiers)
        first = len(self._answers)
        self._answers += proposed.candidates
        return attrs.evolve(proposed, candidates=[one.detached() for one in proposed.candidates]), first

    def law(self, answer: int, row: int) -> Any:
        """The law of an answer."""
        return self._answers[answer].law(row)

    def _prepare(self, spans: Spans, number: int, slots: list[int], told: bytes) -> None:
        """Prepare until all is there or it is to end, and answer at once.

        Args:
            spans: what the drafter did before, beside the target's pass.
            number: of this preparing, see `Shelf.ended`.
            slots: of the sequences.
            told: the schedule and the jobs, pickled: they hold what others have written, which may not be known here.
        """
        try:
            schedule, jobs = pickle.loads(told)
        except Exception as error:
            fault = RuntimeError(f"what the policy or the schedule holds cannot be read there: {one_line(error)}")
            _answer(self._connection, Stopped(faults=dict.fromkeys(slots, fault), spans=spans.found))
            return
        stopped: Stopped
        try:
            preparing = Preparing(self.drafter, schedule, jobs)
            while self._shelf.ended < number and not self._connection.poll():  # which also sees that it is closed
                with spans.of("prepare"):
                    if not preparing.step():
                        break
            stopped = Stopped(preparing.prepared(), None, preparing.faults, spans.found, preparing.passes)
        except Exception as error:
            stopped = Stopped(failure=error, spans=spans.found)
        faults = {slot: RuntimeError(one_line(error)) for slot, error in stopped.faults.items()}
        failure = None if stopped.failure is None else RuntimeError(one_line(stopped.failure))
        _answer(self._connection, attrs.evolve(stopped, faults=faults, failure=failure))


def take_cores(count: int) -> None:
    """Run on the last `count` of the cores that this process may use, with as many threads."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])
    torch.set_num_threads(count)
