"""The command line. `main` is the entry point of `talon`; the commands are in the modules beside it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from talon_core.cli.streams import asks_for_json, open_closed_descriptors

INTERRUPTED = 130
"""The exit status after Ctrl-C."""

SAID = b"talon: interrupted\n"
"""What is said on stderr then, where a command has not begun."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `talon` with these arguments (by default the process's own) and return its exit status."""
    open_closed_descriptors()
    try:
        with _leaving_at_once(sys.argv[1:] if arguments is None else arguments):
            from talon_core.cli.run import run  # within the function, so that `import talon_core.cli` costs nothing

        return run(arguments)
    except KeyboardInterrupt:  # before anything was begun, or after everything was done
        _write(2, SAID)
        return INTERRUPTED


@contextlib.contextmanager
def _leaving_at_once(arguments: Sequence[str]) -> Iterator[None]:
    """While modules are imported, Ctrl-C ends the process: half an import is nothing to go on with."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield  # somebody has ignored the signal, or has plans of his own
        return

    def leave(*_: object) -> None:
        _write(2, SAID)
        if asks_for_json(arguments):
            _write(1, b'{"error": "interrupted"}\n')
        os._exit(INTERRUPTED)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write(descriptor: int, said: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, said)
