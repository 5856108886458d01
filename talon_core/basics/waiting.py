"""Processes and threads that work for another one, and end with it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread

WATCHED = 0.5
"""Seconds between two looks of a process that works at whether somebody still waits for it."""


def end_with(waiting: int) -> None:
    """End this process when its parent is no more, whatever a plugin is at then: a kill takes nobody along.

    The end of a pipe does not tell: processes that were forked later hold it open.

    Args:
        waiting: the number of the parent, which waits for this process.
    """
    Thread(target=_watch, args=(waiting,), daemon=True).start()


def _watch(waiting: int) -> None:
    while os.getppid() == waiting:
        time.sleep(WATCHED)
    os._exit(1)


HURRIED = (KeyboardInterrupt, SystemExit)
"""Errors behind which the user waits for nothing but the end."""


def nothing() -> None:
    """Do nothing."""


@contextmanager
def uninterrupted(meanwhile: Callable[[], None] = nothing) -> Iterator[None]:
    """Ctrl-C waits until what is inside is done: what is begun there is known to somebody who ends it, or not begun.

    Args:
        meanwhile: is called when Ctrl-C comes, within whatever the thread does then.
    """
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):  # others are not interrupted
        yield
        return
    came: list[int] = []

    def wait(number: int, _: object) -> None:
        came.append(number)
        meanwhile()

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
