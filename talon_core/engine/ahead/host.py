"""The process beside: it hosts a drafter, answers what that is asked, and prepares until it is told to stop."""

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import attrs

from talon_core.basics.waiting import end_with
from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Part
from talon_core.engine.ahead.preparing import Preparing
from talon_core.engine.ahead.shelf import Placed, Shelf
from talon_core.engine.ahead.whole import GrowingWhole, Layer
from talon_core.engine.ahead.worker import Stopped
from talon_core.engine.spans import timed
from talon_core.errors import one_line
from talon_core.rounds import Span

TOLD = ("open", "resume", "close")
"""What is told to the drafter as it comes."""


@attrs.frozen
class About:
    """What a hosted drafter says of itself; it listens if `read` is its own."""

    max_depth: int | None
    takes_paths: bool
    uses_target: bool
    listens: bool
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
    with ExitStack() as session, suppress(EOFError, OSError):  # nobody listens any more
        try:
            own = opened(pickle.loads(connection.recv_bytes()))
            hosted = _Hosted(own.drafter, own.device, shelf, connection)
            session.enter_context(own.session)
            _send(connection, "done", hosted.about())
        except Exception as error:
            _send(connection, "refused", (type(error).__name__, one_line(error)))
            return
        while True:
            while not connection.poll() and hosted.catch_up():
                pass
            hosted.serve(connection.recv_bytes())


def _send(connection: Connection, how: str, answer: Any) -> None:
    """Send an answer.

    Args:
        connection: to the other process.
        how: "done"; "refused" where the drafter cannot be opened; "failed" where it has failed, in words then.
        answer: likewise.
    """
    connection.send_bytes(pickle.dumps((how, answer)))


class _Hosted:
    """A drafter that another process asks."""

    def __init__(self, drafter: Drafter, device: Any, shelf: Shelf, connection: Connection) -> None:
        self.drafter = drafter
        self._device = device
        self._shelf = shelf
        self._connection = connection
        self._answers: list[Candidates] = []  # of this round, whose laws may be asked for
        self._failed: str | None = None  # what has gone wrong while nobody asked

    def about(self) -> About:
        own = self.drafter
        listens = type(own).read is not Drafter.read
        return About(own.max_depth, own.takes_paths, own.uses_target, listens, dict(own.describe()))

    def catch_up(self) -> bool:
        """Read something that waits, while nobody asks; whether there was anything."""
        try:
            return bool(self._failed is None and self.drafter.catch_up())
        except Exception as error:
            self._failed = f"catch_up, {type(error).__name__}: {one_line(error)}"
            return False

    def serve(self, message: bytes) -> None:
        """Do what is asked, and answer.

        Args:
            message: what was accepted since, for `commit`, or None where nothing was; what is asked; and with what.
        """
        if self._failed is not None:
            _send(self._connection, "failed", self._failed)
            return
        spans, at = list[Span](), "what it was sent"
        try:
            committed, what, *given = pickle.loads(message)
            if committed is not None:
                at = "what was accepted"
                with timed("prepare", perf_counter, spans, work="commit"):
                    self.commit(committed)
            at = what
            if what == "prepare":
                answer: Any = self._prepared(spans, *given)
            else:
                answer = getattr(self.drafter if what in TOLD else self, what)(*given)
            _send(self._connection, "done", answer)
        except Exception as error:
            _send(self._connection, "failed", f"{at}, {type(error).__name__}: {one_line(error)}")

    def hear(self) -> None:
        """What was accepted was all."""

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

    def propose(self, frontiers: Sequence[Frontier], told: bytes | None) -> list[Layer]:
        """What is offered at some frontiers, and at those after it of a tree that is drafted whole.

        Args:
            frontiers: of several trees, or the first one of that tree.
            told: that tree, see `sent`; None where no more is asked.
        """
        layers = [self._layer(frontiers)]
        try:
            growth = GrowingWhole(pickle.loads(told)) if told is not None else None
        except Exception:  # its policy cannot be read here, or fails
            growth = None
        while growth is not None:
            asked = growth.after(layers[-1], partial(self.law, layers[-1].number))
            if asked is None:
                break
            layers.append(attrs.evolve(self._layer([asked]), asked=asked))
        return layers

    def _layer(self, frontiers: Sequence[Frontier]) -> Layer:
        proposed = self.drafter.propose(frontiers)
        number = len(self._answers)
        self._answers += proposed.candidates
        return Layer(attrs.evolve(proposed, candidates=[one.detached() for one in proposed.candidates]), number)

    def law(self, answer: int, row: int) -> Any:
        """The law of an answer."""
        return self._answers[answer].law(row)

    def _prepared(self, spans: list[Span], number: int, slots: list[int], told: bytes) -> Stopped:
        """Prepare until all is there or it is to end.

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
            return Stopped(faults=dict.fromkeys(slots, fault), spans=spans)
        stopped: Stopped
        try:
            preparing = Preparing(self.drafter, schedule, jobs)
            while self._shelf.ended < number and not self._connection.poll():  # which also sees that it is closed
                if not preparing.timed_step(spans):
                    break
            stopped = Stopped(preparing.prepared(), None, preparing.faults, spans, preparing.passes)
        except Exception as error:
            stopped = Stopped(failure=error, spans=spans)
        faults = {slot: RuntimeError(one_line(error)) for slot, error in stopped.faults.items()}
        failure = None if stopped.failure is None else RuntimeError(one_line(stopped.failure))
        return attrs.evolve(stopped, faults=faults, failure=failure)


def take_cores(count: int) -> None:
    """Run on the last `count` of the cores that this process may use, with as many threads."""
    import torch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])
    torch.set_num_threads(count)
