"""A worker that prepares in a process of its own, with its own cores or its own GPU."""

import json
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import attrs

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed
from talon_core.engine.ahead.host import About
from talon_core.engine.ahead.patience import Patience
from talon_core.engine.ahead.prepared import Row
from talon_core.engine.ahead.preparing import Job
from talon_core.engine.ahead.shelf import Placed, Shelf
from talon_core.engine.ahead.worker import Stopped, Worker
from talon_core.errors import LostError
from talon_core.rounds import Span
from talon_core.schedule import Schedule
from talon_core.tree import FloatArray, IntArray

ENDING = 2.0
"""Seconds that a process has to end in when nobody needs it any more; then it is killed."""


class _Process:
    """One process that hosts a drafter.

    Args:
        command: what it runs; it gets two file numbers and the number of this process behind it.
        opening: what it is sent first.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(self, command: Sequence[str], opening: bytes) -> None:
        self.shelf = Shelf()
        with ExitStack() as failed:
            failed.callback(self.shelf.close)
            ours, theirs = socket.socketpair()
            numbers = theirs.fileno(), self.shelf.number
            with theirs:
                self.connection = Connection(ours.detach())
                failed.callback(self.connection.close)
                self.popen = subprocess.Popen(
                    [*command, *map(str, numbers), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=numbers,
                    start_new_session=True,  # Ctrl-C is not for it
                )
            failed.pop_all()
        self.end = weakref.finalize(self, _end, self.popen, self.connection, self.shelf)
        try:
            self.connection.send_bytes(opening)
        except BaseException:
            self.end()
            raise

    def tell(self, committed: Any, what: str, *given: Any) -> None:
        """Let it do something.

        Args:
            committed: what was accepted before; None for nothing.
            what: it does.
            given: with what.

        Raises:
            LostError: if it has ended.
        """
        message = pickle.dumps((committed, what, *given))
        try:
            self.connection.send_bytes(message)
        except OSError as error:
            raise self._lost("has ended") from error

    def answer(self, seconds: float) -> Any:
        """What it answers; whatever was placed for it has been taken then.

        Raises:
            LostError: if it has ended, does not answer in time, or has failed at what was accepted; it is ended then.
            RuntimeError: if the drafter has raised something.
        """
        try:
            if not self.connection.poll(seconds):
                raise self._lost(f"has not answered in {seconds:.3g} s")
            how, answer = pickle.loads(self.connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise self._lost("has ended") from error
        self.shelf.clear()
        if how == "lost":
            raise self._lost(f"has failed at what was accepted, {answer[0]}: {answer[1]}")
        if how == "raised":
            kind, said = answer
            raise {"ValueError": ValueError, "MemoryError": MemoryError}.get(kind, RuntimeError)(said)
        return answer

    def _lost(self, why: str) -> LostError:
        self.end()
        return LostError(f"its process {why}")


def _end(popen: "subprocess.Popen[bytes]", connection: Connection, shelf: Shelf) -> None:
    """Leave nothing of a process, whatever it is at."""
    with suppress(OSError):
        connection.close()  # which it takes for the end
    with suppress(OSError):
        shelf.close()
    try:
        popen.wait(ENDING)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()


class ProcessWorker(Worker):
    """Prepares in a process, which hosts the drafter; what it is told and asked goes there.

    It is there as long as this worker is. One that dies, hangs or cannot open the drafter is given up, and another one
    is started when the next sequence begins; until that is ready, sequences are decoded without drafts.

    A round takes one message each way where it begins with what was prepared: what was accepted goes there with what is
    to be prepared next, and what was prepared comes back. That it is to end is a number in memory that both share, and
    no message. What was accepted waits for the next message, whatever that is. Where the drafter is asked for a tree
    there are a message and an answer for each layer, as the policy chooses by one layer what it asks in the next.

    Args:
        command: the process's; see `_Process`.
        opening: what it is sent first, pickled.
        vocab_size: the target's.
        patience: how long an answer may take.
        lends: gives what is entered in each session, as the process needs the cores that it has only then.

    Raises:
        ValueError: if the drafter cannot be opened there.
        LostError: if the process ends before it is.
        OSError: if none can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        opening: Any,
        vocab_size: int,
        patience: Patience | None = None,
        lends: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._command, self._opening = command, pickle.dumps(opening)
        self._patience = patience if patience is not None else Patience()
        self._vocab_size = vocab_size
        self._process: _Process | None = _Process(command, self._opening)
        self._starting: _Process | None = None
        self._lends, self._loans = lends, ExitStack()
        self._committed: Any = None  # is told with the next message
        self._preparings = 0
        self._stopping = False
        self._unsent: dict[int, Exception] = {}  # what could not be sent, by slot
        try:
            about: About = self._process.answer(self._patience.first)
        except BaseException:
            self._process.end()
            raise
        self.drafter = _Remote(self, about, vocab_size)

    @property
    def number(self) -> int | None:
        """The process's number; None where there is none."""
        return None if self._process is None else self._process.popen.pid

    @property
    def lost(self) -> bool:  # type: ignore[override]  # whether it is back is seen when it is asked
        """Whether there is no process that has opened the drafter; asking for it starts one."""
        if self._process is not None and self._process.popen.poll() is not None:
            self._give_up()
        if self._process is not None:
            return False
        if self._starting is None:
            with suppress(OSError):
                self._starting = _Process(self._command, self._opening)
            return True
        try:
            if not self._starting.connection.poll(0):
                return True
            self._starting.answer(self._patience.least)
        except (LostError, RuntimeError, ValueError, MemoryError, OSError):
            self._starting.end()
            self._starting = None  # and again at the next sequence
            return True
        self._process, self._starting = self._starting, None
        return False

    def _give_up(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            self._committed = None
            self.losses += 1
            process.end()

    def ask(self, what: str, *given: Any) -> Any:
        """Let the drafter do something.

        Raises:
            LostError: if there is no process any more.
            RuntimeError: if the drafter has raised something.
        """
        return self.ask_for(what, what, *given)

    def ask_for(self, kind: Hashable, what: str, *given: Any) -> Any:
        """As `ask`, of calls some of which take longer than others.

        Args:
            kind: calls of one kind take about as long.
            what: likewise.
            given: likewise.
        """
        if self._process is None:
            raise LostError("its process has ended")
        committed, self._committed = self._committed, None
        kind = kind if committed is None else (kind, "commit")
        started = perf_counter()
        try:
            self._process.tell(committed, what, *given)
            answer = self._process.answer(self._patience.seconds(kind))
        except (LostError, KeyboardInterrupt):  # an answer that nobody waits for would be the next one's
            self._give_up()
            raise
        self._patience.saw(kind, [perf_counter() - started])
        return answer

    def commit(self, committed: Mapping[int, Committed]) -> None:
        """Tell of what was accepted with the next message.

        Raises:
            LostError: if there is no process any more.
        """
        if self._committed is not None:
            self.ask("hear")
        if self._process is None:
            raise LostError("its process has ended")
        self._committed = {
            slot: (one.tokens, one.nodes, self.place(one.features), one.answers) for slot, one in committed.items()
        }

    def place(self, features: Any) -> Placed | None:
        """Put features where the process finds them, until it has answered the message that tells of them."""
        return None if features is None or self._process is None else self._process.shelf.place(features)

    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        self._stopping = False
        if self._process is not None:
            try:
                slots, told = [job.slot for job in jobs], pickle.dumps((schedule, jobs))
                committed, self._committed = self._committed, None
                self._preparings += 1
                self._process.tell(committed, "prepare", self._preparings, slots, told)
                self._stopping = True
            except LostError:  # seen again when it is stopped
                return
            except Exception as error:  # a policy or a schedule that holds what cannot be sent
                self._unsent = dict.fromkeys([job.slot for job in jobs], error)

    def stop(self) -> Stopped:
        started = perf_counter()
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            return Stopped(faults=unsent)
        if not self._stopping or self._process is None:
            self._give_up()
            return Stopped(failure=LostError("its process has ended"))
        try:
            self._process.shelf.ended = self._preparings
            found: Stopped = self._process.answer(self._patience.seconds("prepare"))
        except BaseException as error:
            self._give_up()
            if not isinstance(error, Exception):
                raise
            return Stopped(failure=error)
        self._stopping = False
        self._patience.saw("prepare", [span.seconds for span in found.spans])
        return attrs.evolve(found, spans=[*found.spans, Span("wait", started, perf_counter())])

    def wake(self) -> None:
        self._loans.enter_context(self._lends())

    def rest(self) -> None:
        self._loans.close()

    def close(self) -> None:
        """End the process."""
        self._give_up()
        if self._starting is not None:
            self._starting.end()


class _Remote(Drafter):
    """Stands for a drafter that a process hosts."""

    def __init__(self, worker: ProcessWorker, about: About, vocab_size: int) -> None:
        self._worker = weakref.proxy(worker)
        self._vocab_size = vocab_size
        self.max_depth = about.max_depth
        self.uses_target = False  # what it runs there is not this target
        self._described = about.described

    def describe(self) -> Mapping[str, object]:
        return self._described

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._worker.ask("open", slot, prompt, room)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        taken: int = self._worker.ask("resume", slot, prompt, room, source, length)
        return taken

    def close(self, slot: int) -> None:
        self._worker.ask("close", slot)

    def read(self, parts: Mapping[int, Part]) -> None:
        own = {slot: (one.start, one.count, self._worker.place(one.features)) for slot, one in parts.items()}
        most = max(one.count for one in parts.values())
        self._worker.ask_for(("read", most.bit_length()), "read", own)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._worker.commit(committed)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        bare = [attrs.evolve(one, tree=one.tree.without_laws()) for one in frontiers]
        proposed: Proposed
        proposed, first = self._worker.ask("propose", bare)
        answers = [attrs.evolve(one, law=self._law(first + at, one)) for at, one in enumerate(proposed.candidates)]
        return attrs.evolve(proposed, candidates=answers)

    def _law(self, answer: int, offered: Candidates) -> Callable[[int], FloatArray]:
        known: dict[int, FloatArray] = {}  # the process may be lost between two calls, which have one answer

        def law(row: int) -> FloatArray:
            if row not in known:
                try:
                    known[row] = self._worker.ask("law", answer, row)
                except LostError:
                    known[row] = Row.of(offered, row, offered.width).offered_law(self._vocab_size)
            return known[row].copy()

        return law


def python(module: str, function: str) -> list[str]:
    """A command that calls a function of ours, where modules are found as they are here."""
    path = json.dumps(sys.path)
    code = f"import json, sys; sys.path[:] = json.loads({path!r}); from {module} import {function}; {function}()"
    return [sys.executable, "-c", code]
