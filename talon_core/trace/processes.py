"""Work on many things at once, in processes that are forks of this one."""

import gc
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

import attrs

from talon_core.basics.memory import keep_freed_memory
from talon_core.basics.waiting import end_with
from talon_core.errors import PluginError, one_line

Executor = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[tuple[int, Any]]]
"""`executor(work, things)`: do work on things, and give the place of each with what came of it, as they are done.

What the work raises is raised again as `taken` does, and so is the death of a process that works, if it dies twice at
the same thing."""

Answered = tuple[str | None, Any]
"""What came of a thing, from another process: the kind of its error and the sentence, or None and what was wanted."""


def can_fork() -> bool:
    """Whether the system can, and torch is not loaded: a fork does not have its threads."""
    return "fork" in multiprocessing.get_all_start_methods() and "torch" not in sys.modules


def one_by_one(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """The `Executor` of this process alone."""
    return ((place, work(thing)) for place, thing in enumerate(things))


def in_processes(count: int) -> Executor:
    """The `Executor` of so many processes; of this one where that is 1, or where it cannot fork."""

    def run(work: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        workers = min(count, len(things))
        return _Pool(work, things).results(workers) if workers > 1 and can_fork() else one_by_one(work, things)

    return run


def apart(work: Callable[[], Any]) -> Any:
    """What comes of work in a process of its own, where the system can fork: what it loads is not loaded here.

    Raises:
        PluginError: if the work has raised one.
        ValueError: if the work has raised one, or a LookupError or an OSError, or its process dies twice.
        MemoryError: if there was too little memory for it.
        RuntimeError: for any other error of the work.
    """
    if not can_fork():
        return work()
    ((_, found),) = _Pool(lambda _: work(), ["what was asked apart"]).results(1)
    return found


@attrs.define
class _Worker:
    """A process, the pipe to it, and the place of the thing that it is at."""

    process: ForkProcess
    end: Connection
    place: int


class _Pool:
    """Processes that are given one thing after the other."""

    def __init__(self, work: Callable[[Any], Any], things: Sequence[Any]) -> None:
        self._work, self._things = work, things
        self._waiting = deque(range(len(things)))
        self._died: set[int] = set()  # places at which a process has died
        self._workers: dict[Connection, _Worker] = {}  # those that are at something

    def results(self, count: int) -> Iterator[tuple[int, Any]]:
        try:
            for _ in range(count):
                self._start()
            while self._workers:
                ready = {id(end) for end in wait([*self._workers])}
                for worker in [worker for end, worker in self._workers.items() if id(end) in ready]:
                    place = worker.place
                    try:
                        kind, found = worker.end.recv()
                    except (EOFError, OSError):  # it may have died in the middle of its answer
                        self._replace(worker)
                        continue
                    self._go_on(worker)
                    yield place, taken(kind, found)
        finally:  # those that have nothing more to do end by themselves, which nobody needs to wait for
            for worker in self._workers.values():
                worker.process.terminate()
            for worker in self._workers.values():
                worker.process.join()
            multiprocessing.active_children()  # which forgets those that have ended

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(self._work, self._things, there, os.getpid()), daemon=True)
        process.start()
        there.close()  # else its death would not be seen
        self._workers[here] = worker = _Worker(process, here, -1)
        self._go_on(worker)

    def _go_on(self, worker: _Worker) -> None:
        if self._waiting:
            worker.place = self._waiting.popleft()
        else:
            del self._workers[worker.end]
        with suppress(OSError):  # where it has died meanwhile, that is seen when its answer is waited for
            worker.end.send(worker.place if worker.end in self._workers else None)

    def _replace(self, worker: _Worker) -> None:
        """Another process for one that has died."""
        del self._workers[worker.end]
        worker.process.join()
        if worker.place in self._died:
            raise ValueError(dead(self._things[worker.place]))
        self._died.add(worker.place)
        self._waiting.appendleft(worker.place)
        self._start()


def _serve(work: Callable[[Any], Any], things: Sequence[Any], there: Connection, waiting: int) -> None:
    gc.freeze()  # a collection would write to every object that is there, and so copy every page
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    end_with(waiting)
    keep_freed_memory()
    with suppress(EOFError, OSError, KeyboardInterrupt):  # nobody waits any more, or a plugin ends this process
        while (place := there.recv()) is not None:
            there.send(answered(work, things[place]))


def answered(work: Callable[[Any], Any], thing: Any) -> Answered:
    """What comes of a thing, in a form that other processes can read: errors of others cannot always be pickled."""
    try:
        return None, work(thing)
    except PluginError as error:
        return "plugin", one_line(error)
    except (ValueError, LookupError, OSError) as error:
        return "value", one_line(error)
    except MemoryError as error:
        return "memory", one_line(error)
    except Exception as error:
        return type(error).__name__, one_line(error)


def taken(kind: str | None, found: Any) -> Any:
    """What was wanted out of `Answered`.

    Raises:
        PluginError: if the work has raised one.
        ValueError: if the work has raised one, or a LookupError or an OSError.
        MemoryError: if there was too little memory for it.
        RuntimeError: for any other error of the work.
    """
    if kind is None:
        return found
    if kind == "plugin":
        raise PluginError(found)
    if kind == "value":
        raise ValueError(found)
    if kind == "memory":
        raise MemoryError(found)
    raise RuntimeError(f"{kind}: {found}")


def dead(thing: Any) -> str:
    """The sentence about a thing at which processes die."""
    return (
        f"a process has died twice at {thing}; it may have run out of memory, or a plugin has ended it: "
        "with one process more can be seen"
    )
