"""A worker that prepares in a process of its own, with its own cores or its own GPU."""

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import attrs

from talon_core.basics.numerals import rounded
from talon_core.basics.waiting import uninterrupted
from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed
from talon_core.engine.ahead.host import About
from talon_core.engine.ahead.patience import HURRIED_WORDS, Patience
from talon_core.engine.ahead.prepared import Row
from talon_core.engine.ahead.preparing import Job
from talon_core.engine.ahead.shelf import Placed, Shelf
from talon_core.engine.ahead.whole import Layer, Whole, sent
from talon_core.engine.ahead.worker import Stopped, Worker
from talon_core.engine.checked_candidates import checked_candidates, checked_law
from talon_core.engine.checked_drafter import checked_proposal, checked_resume
from talon_core.errors import LostError, one_line
from talon_core.rounds import Span
from talon_core.schedule import Schedule
from talon_core.tree import FloatArray, IntArray

ENDING = 2.0
"""Seconds that a process has to end in when nobody needs it any more; then it is killed."""

STALLED = 60.0
"""Seconds for which a message that was begun may stand still, in both directions."""


class _Process:
    """One process that hosts a drafter.

    Args:
        command: what it runs; it gets two file numbers and the number of this process behind it.
        opening: what it is sent first.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(self, command: Sequence[str], opening: bytes) -> None:
        with ExitStack() as failed:
            with uninterrupted():
                self.shelf = Shelf()
                failed.callback(self.shelf.close)
                ours, theirs = socket.socketpair()
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", *divmod(int(STALLED * 1e6), 10**6)))
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
                failed.callback(self.end)
            self.connection.send_bytes(opening)
            failed.pop_all()

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
            raise self._lost(_how(error)) from error

    def answer(self, patience: Patience, seconds: float) -> Any:
        """What it answers; whatever was placed for it has been taken then.

        Args:
            patience: of who waits.
            seconds: that it may take.

        Raises:
            LostError: if it has ended, does not answer in time or nothing that can be read, or the drafter has failed
                there; it is ended then.
            RuntimeError: if the drafter cannot be opened there; likewise ValueError and MemoryError.
        """
        try:
            came = patience.has_come(self.connection.poll, seconds)
            message: Any = pickle.loads(self.connection.recv_bytes()) if came else ("silent", None)
            how, answer = message
        except (OSError, EOFError) as error:
            raise self._lost(_how(error)) from error
        except Exception as error:  # bytes of somebody else's may raise anything
            raise self._lost(f"has answered what cannot be read: {one_line(error)}") from error
        self.shelf.clear()
        if how == "silent" and patience.is_hurried:
            self.popen.kill()  # it would end by itself no sooner than it answers
            raise self._lost(f"has not answered {HURRIED_WORDS}")
        if how == "silent":
            raise self._lost(f"has not answered in {rounded(seconds)} s")
        if how == "failed":
            raise self._lost(f"has failed at {answer}")
        if how == "refused":
            kind, said = answer
            raise {"ValueError": ValueError, "MemoryError": MemoryError}.get(kind, RuntimeError)(said)
        if how != "done":
            raise self._lost("has answered what cannot be read")
        return answer

    def _lost(self, why: str) -> LostError:
        self.end()
        return LostError(f"its process {why}")


def _how(error: Exception) -> str:
    """What has become of a process that cannot be written to, or read from."""
    return "stands still in the middle of a message" if isinstance(error, BlockingIOError) else "has ended"


def _end(popen: "subprocess.Popen[bytes]", connection: Connection, shelf: Shelf) -> None:
    """Leave nothing of a process, whatever it is at."""
    with uninterrupted():
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

    It is there as long as this worker is. One that dies or hangs, or in which the drafter fails or breaks its contract,
    is given up, and another one is started when the next sequence begins; until that is ready, sequences are decoded
    without drafts.

    A round takes one message each way where it begins with what was prepared: what was accepted goes there with what is
    to be prepared next, and what was prepared comes back. That it is to end is a number in memory that both share, and
    no message. What was accepted waits for the next message, whatever that is. Where a tree has to be drafted there is
    one more each way for all its layers, see `Whole`; or one for each layer, where a tree cannot be drafted whole.

    Args:
        command: the process's; see `_Process`.
        opening: what it is sent first, pickled.
        named: the drafter's options, whom errors name.
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
        named: object,
        vocab_size: int,
        patience: Patience | None = None,
        lends: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._command, self._opening = command, pickle.dumps(opening)
        self._patience = patience if patience is not None else Patience()
        self._vocab_size = vocab_size
        self._process: _Process | None = None
        self._starting: _Process | None = None
        self._lends, self._loans = lends, ExitStack()
        self._committed: Any = None  # is told with the next message
        self._preparings = 0
        self._told_at = (0.0, 0.0)  # when it was told to prepare, by its clock and by the engine's
        self._stopping = False
        self._unsent: dict[int, Exception] = {}  # what could not be sent, by slot
        try:
            self._process = _Process(command, self._opening)
            about: About = self._process.answer(self._patience, self._patience.first)
            remote = _Listening if about.listens else _Remote
            self.drafter = self._remote = remote(self, about, named, vocab_size)
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int | None:
        """The process's number; None where there is none."""
        return None if self._process is None else self._process.popen.pid

    @property
    def lost(self) -> bool:  # type: ignore[override]  # whether it is back is seen when it is asked
        """Whether there is no process that has opened the drafter; asking for it starts one."""
        if self._process is not None and self._process.popen.poll() is not None:
            self._give_up("its process has ended")
        if self._process is not None:
            return False
        if self._starting is None:
            with suppress(OSError):
                self._starting = _Process(self._command, self._opening)
            return True
        try:
            if not self._starting.connection.poll(0):
                return True
            self._starting.answer(self._patience, self._patience.least)
        except (LostError, RuntimeError, ValueError, MemoryError, OSError):
            self._starting.end()
            self._starting = None  # and again at the next sequence
            return True
        self._process, self._starting = self._starting, None
        return False

    def _give_up(self, why: str) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            self._committed = None
            self.losses += 1
            self.why = why
            process.end()

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside is the end of the process: nobody knows what the drafter knows, or says next.

        Args:
            what: is tried.

        Raises:
            LostError: for any `Exception`.
        """
        try:
            yield
        except LostError as error:
            self._give_up(one_line(error))
            raise
        except Exception as error:
            self._give_up(f"its process has failed at {what}: {one_line(error)}")
            raise LostError(self.why) from error
        except BaseException:
            self._give_up(f"its process was interrupted at {what}")
            raise

    def ask(self, what: str, *given: Any) -> Any:
        """Let the drafter do something.

        Raises:
            LostError: if there is no process any more, or the drafter has failed.
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
        with self.trying(what):
            self._process.tell(committed, what, *given)
            answer = self._process.answer(self._patience, self._patience.seconds(kind))
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
        with self.trying("commit"):
            self._committed = {
                slot: (one.tokens, self._remote.known(one.nodes), self.place(one.features), one.answers)
                for slot, one in committed.items()
            }

    def place(self, features: Any) -> Placed | None:
        """Put features where the process finds them, until it has answered the message that tells of them."""
        return None if features is None or self._process is None else self._process.shelf.place(features)

    def drafts_whole(self, tree: Whole) -> bool:
        return self._remote.begins(tree)

    def prepare(self, schedule: Schedule, jobs: Sequence[Job]) -> None:
        self._stopping = False
        if self._process is not None:
            try:
                self._remote.check_alike()
                slots, told = [job.slot for job in jobs], pickle.dumps((schedule, jobs))
                committed, self._committed = self._committed, None
                self._preparings += 1
                self._told_at = perf_counter(), self.now()
                self._process.tell(committed, "prepare", self._preparings, slots, told)
                self._stopping = True
            except LostError as error:  # seen again when it is stopped
                self._give_up(one_line(error))
            except Exception as error:  # a policy or a schedule that cannot be sent, or decides otherwise there
                self._unsent = dict.fromkeys([job.slot for job in jobs], error)

    def stop(self) -> Stopped:
        started = self.now()
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            return Stopped(faults=unsent)
        try:
            with self.trying("prepare"):
                if not self._stopping or self._process is None:
                    raise LostError(self.why or "its process has ended")
                self._process.shelf.ended = self._preparings
                found: Stopped = self._process.answer(self._patience, self._patience.seconds("prepare"))
                self._patience.saw("prepare", [span.seconds for span in found.spans])
        except LostError as error:
            return Stopped(failure=error)
        self._stopping = False
        spans = _between(self._told_at, (perf_counter(), self.now()), found.spans)
        return attrs.evolve(found, spans=[*spans, Span("wait", started, self.now())])

    def hurry(self, hurried: bool) -> None:
        self._patience.hurry(hurried)

    def wake(self) -> None:
        self._loans.enter_context(self._lends())

    def rest(self) -> None:
        self._loans.close()

    def close(self) -> None:
        """End the process."""
        self._give_up("it was closed")
        if self._starting is not None:
            self._starting.end()


def _between(told: tuple[float, float], answered: tuple[float, float], spans: Iterable[Span]) -> list[Span]:
    """Spans by a process's clock, told by the engine's: each lies as far between the same two moments.

    Args:
        told: when the process was told to begin, by its clock, which is this machine's, and by the engine's.
        answered: when it had answered, likewise.
        spans: what lies between, by its clock.
    """
    whole = answered[0] - told[0]

    def at(time: float) -> float:
        share = min(max((time - told[0]) / whole, 0.0), 1.0) if whole > 0 else 0.0
        return told[1] + share * (answered[1] - told[1])

    return [attrs.evolve(span, start=at(span.start), end=at(span.end)) for span in spans]


class _Remote(Drafter):
    """Stands for a drafter that a process hosts. What that answers is checked here: nonsense is a loss of the process.

    All methods raise a LostError where the process is lost, whatever the reason is.

    Layers of a tree that is drafted whole are kept until they are asked for. Where the sequence's own policy asks for
    others, as one may that looks at a clock, the tree ends there: the drafter has gone on with another one, of which it
    is told no node that it has not in common with this. No tree is drafted whole then any more.
    """

    def __init__(self, worker: ProcessWorker, about: About, named: object, vocab_size: int) -> None:
        self._worker = weakref.proxy(worker)
        self._named = named
        self._vocab_size = vocab_size
        self.max_depth, self.takes_paths = about.max_depth, about.takes_paths
        self.uses_target = False  # what it runs there is not this target
        self._described = about.described
        self._whole: bytes | None = None  # the tree that begins with the next frontier, if it is drafted whole
        self._layers: list[Layer] = []  # of the current tree, that were not asked for yet
        self._nodes = 0  # of the current tree, that the drafter has seen just so
        self._alike = True  # whether policies have decided there as here
        self._opened: dict[int, int] = {}  # by slot: how often a process had been lost when this one was told of it

    def describe(self) -> Mapping[str, object]:
        return self._described

    def begins(self, tree: Whole) -> bool:
        """Whether this tree, whose root is asked about next, is drafted whole."""
        self._whole = sent(tree) if self._alike else None
        return self._whole is not None

    def check_alike(self) -> None:
        """Refuse to go on from a tree that is not the one which was drafted whole.

        Raises:
            RuntimeError: if it is not.
        """
        if self._layers:
            self._alike = False
            raise RuntimeError(
                "the policy has drafted another tree in the drafter's process than here, so that its trees are drafted "
                "layer by layer from now on; what it decides may hang only on what it is shown and remembers"
            )

    def known(self, nodes: IntArray) -> IntArray:
        """Of the accepted nodes those that the drafter knows so; the tree is over."""
        known = nodes[nodes < self._nodes] if self._layers else nodes
        self._forget_tree()
        return known

    def _forget_tree(self) -> None:
        self._whole, self._layers = None, []

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._forget_tree()
        self._worker.ask("open", slot, prompt, room)
        self._opened[slot] = self._worker.losses

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        self._forget_tree()
        with self._worker.trying("resume"):
            taken = self._worker.ask("resume", slot, prompt, room, source, length)
            self._opened[slot] = self._worker.losses
            return checked_resume(self._named, taken, length)

    def close(self, slot: int) -> None:
        self._forget_tree()  # it may be one that has failed here, and not there
        if self._opened.pop(slot, None) == self._worker.losses:  # another process has never heard of the slot
            self._worker.ask("close", slot)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._worker.commit(committed)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        bare = [attrs.evolve(one, tree=one.tree.without_laws()) for one in frontiers]
        with self._worker.trying("propose"):
            layer = self._layer(bare)
            if layer is None:
                return Proposed([Candidates.unknown(one.nodes) for one in bare])
            proposed = checked_proposal(self._named, layer.proposed, len(bare))
            answers = []
            for number, (asked, one) in enumerate(zip(bare, proposed.candidates, strict=True), start=layer.number):
                answer = checked_candidates(self._named, one, asked.tree, asked.nodes, self._vocab_size, asked.width)
                answers.append(attrs.evolve(answer, law=self._law(number, answer, layer.laws)))
        return attrs.evolve(proposed, candidates=answers)

    def _layer(self, frontiers: Sequence[Frontier]) -> Layer | None:
        """The answer to some frontiers; None if the drafter was asked about others of this tree before."""
        if len(frontiers[0].tree) == 1:
            self._layers = []
        if self._layers:
            if not self._layers[0].answers(frontiers[0]):
                return None
            layer = self._layers.pop(0)
        else:
            whole, self._whole = self._whole, None
            kind = "propose" if whole is None else "tree"
            layer, *self._layers = self._worker.ask_for(kind, "propose", frontiers, whole)
        self._nodes = len(frontiers[0].tree)
        return layer

    def _law(
        self, answer: int, offered: Candidates, looked_at: Mapping[int, FloatArray]
    ) -> Callable[[int], FloatArray]:
        known: dict[int, FloatArray] = {}  # the process may be lost between two calls, which have one answer

        def law(row: int) -> FloatArray:
            if row not in known:
                try:
                    with self._worker.trying("law"):
                        given = looked_at[row] if row in looked_at else self._worker.ask("law", answer, row)
                        known[row] = checked_law(self._named, given, self._vocab_size)
                except LostError:
                    known[row] = Row.of(offered, row, offered.width).offered_law(self._vocab_size)
            return known[row].copy()

        return law


class _Listening(_Remote):
    """Stands for one that listens: others are sent no message, which would wait for what they read by themselves."""

    def read(self, parts: Mapping[int, Part]) -> None:
        with self._worker.trying("read"):
            own = {slot: (one.start, one.count, self._worker.place(one.features)) for slot, one in parts.items()}
        most = max(one.count for one in parts.values())
        self._worker.ask_for(("read", most.bit_length()), "read", own)


def python(module: str, function: str) -> list[str]:
    """A command that calls a function of ours, where modules are found as they are here."""
    path = json.dumps(sys.path)
    code = f"import json, sys; sys.path[:] = json.loads({path!r}); from {module} import {function}; {function}()"
    return [sys.executable, "-c", code]
