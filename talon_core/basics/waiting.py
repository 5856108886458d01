"""Processes that work for another one, and end with it."""

import os
import time
from threading import Thread

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
