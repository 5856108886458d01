"""Work on many things in several processes, which are forks of this one."""

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from talon_core.errors import PluginError, one_line


def can_fork() -> bool:
    """Whether the system can, and torch is not loaded: a fork does not have its threads."""
    return "fork" in multiprocessing.get_all_start_methods() and "torch" not in sys.modules


def in_processes(work: Callable[[Any], Any], things: Sequence[Any], count: int) -> Iterator[Any]:
    """Do work on things, and give what comes of each in their order.

    Args:
        work: what is done; what it gives can be pickled.
        things: on what.
        count: processes; the things are dealt out to them in turn.

    Raises:
        ValueError: what the work raises, or if a process dies.
        PluginError: what the work raises.
    """
    context = multiprocessing.get_context("fork")
    workers, ends = [], []
    try:
        for number in range(count):
            here, there = context.Pipe(duplex=False)
            worker = context.Process(target=_serve, args=(work, things[number::count], there), daemon=True)
            worker.start()
            there.close()  # else its death would not be seen
            workers.append(worker)
            ends.append(here)
        for place, thing in enumerate(things):
            yield _received(ends[place % count], thing)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _serve(work: Callable[[Any], Any], things: Sequence[Any], there: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    for thing in things:
        try:
            there.send((None, work(thing)))
        except Exception as error:
            there.send((_kind(error), one_line(error)))
            return


def _kind(error: Exception) -> str:
    """What an error becomes on the other side: those of others cannot always be pickled."""
    if isinstance(error, PluginError):
        return "plugin"
    return "value" if isinstance(error, ValueError | LookupError | OSError) else type(error).__name__


def _received(here: Connection, thing: Any) -> Any:
    try:
        kind, found = here.recv()
    except EOFError:
        raise ValueError(
            f"a process has died at {thing}; it may have run out of memory, or a plugin has ended it: "
            "with one process more can be seen"
        ) from None
    if kind is None:
        return found
    if kind == "plugin":
        raise PluginError(found)
    if kind == "value":
        raise ValueError(found)
    raise RuntimeError(f"{kind}: {found}")
