"""Texts that end at a random moment: by Ctrl-C, by an error, or because nobody wants more of them."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import torch

WAYS = ("ctrl-c", "error", "closed")


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    """Ctrl-C comes after some seconds, unless what is inside is over then; it ends what is inside, and nothing else."""
    inside = True

    def ctrl_c(*_: Any) -> None:
        if inside:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ctrl_c)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        inside = False
    except KeyboardInterrupt:
        inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, before)


def break_off(decoder: Any, request: Any, random: Random, within: float) -> str:
    """Begin a text, and end it at a random moment; how.

    Args:
        decoder: any.
        request: asks for the text.
        random: chooses how and when.
        within: seconds.
    """
    way, seconds = random.choice(WAYS), random.random() * within
    if way == "ctrl-c":
        with ctrl_c_after(seconds):
            decoder.run(request).finish()
    elif way == "closed":
        made = decoder.run(request)
        for _ in range(random.randrange(8)):
            next(made, None)
        made.close()
    else:
        verify, passes = decoder.target.verify, iter(range(random.randrange(8)))

        def failing(*given: Any) -> Any:
            if next(passes, None) is None:
                raise ZeroDivisionError("in the target")
            return verify(*given)

        decoder.target.verify = failing
        try:
            decoder.run(request).finish()
        except ZeroDivisionError:
            pass
        finally:
            decoder.target.verify = verify
    return way


def left() -> dict[str, Any]:
    """What a text may not leave behind: threads, descriptors, shared memory, threads of torch that it has lent."""
    return {
        "threads": sorted(one.name for one in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0,
        "memory": sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else [],
        "torch": torch.get_num_threads(),
    }
