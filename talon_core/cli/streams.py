"""The standard streams while a command runs: its answer on stdout, and whatever else is said on stderr.

With `--json` stdout holds one object and nothing else. From the moment that a command asks for it, descriptor 1 leads
to stderr, for plugins, C libraries and child processes too, and the object goes to a copy of what it was before.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

JSON = "--json"


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether an answer in JSON is expected, as far as arguments tell that are not parsed, or cannot be."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return JSON in options


def open_closed_descriptors() -> None:
    """Lead the standard descriptors that are closed nowhere.

    Without that the next file that is opened becomes stdout or stderr, and gets what is printed.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number that is free


class Streams:
    """What a command writes to.

    Attributes:
        json: whether the answer is one JSON object; see `only_json`.
        interrupted: what Ctrl-C is answered with on stderr; None where the command has said it already.
    """

    def __init__(self, stdout: TextIO, for_good: bool) -> None:
        """Take the streams as they are.

        Args:
            stdout: where the answer goes.
            for_good: leave descriptor 1 led to stderr: the process is about to end, and what plugins print at its
                exit is no part of the answer either.
        """
        self.json = False
        self.interrupted: str | None = "interrupted"
        self._answer: str | None = None
        self._values: Mapping[str, Any] = {}
        self._stdout = stdout
        self._for_good = for_good
        self._copy: TextIO | None = None
        self._descriptor_1: int | None = None

    def only_json(self) -> None:
        """Keep everything but the answer away from stdout from here on."""
        if self.json:
            return
        self.json = True
        before = self._stdout
        before.flush()
        with contextlib.suppress(OSError):  # somebody who runs this within a program may have closed it
            self._descriptor_1 = os.dup(1)
        with contextlib.suppress(OSError, ValueError):  # in the place of a real stream there may be one in memory
            self._copy = open(os.dup(before.fileno()), "w", encoding=before.encoding, errors="replace")  # noqa: SIM115
            self._stdout = self._copy
        if self._descriptor_1 is not None:
            os.dup2(2, 1)
        sys.stdout = sys.stderr

    def answer(self, values: Mapping[str, Any]) -> None:
        """Keep the answer; it is written by `finish`, so that an error after it does not make two objects.

        Args:
            values: what JSON knows.
        """
        encoding = (getattr(self._stdout, "encoding", None) or "utf-8").lower()
        self._answer = json.dumps(values, ensure_ascii=not encoding.startswith("utf"), allow_nan=False, indent=2)
        self._values = values

    def error(self, sentence: str) -> None:
        """Answer with an error; what was answered before it stays beside it."""
        self.answer({**self._values, "error": sentence})

    @property
    def answered(self) -> bool:
        """Whether there is an answer in JSON."""
        return self._answer is not None

    def finish(self) -> None:
        """Write what is still to be written.

        Raises:
            OSError: if stdout takes no more; nothing is tried on it again.
        """
        try:
            if self._answer is not None:
                self._stdout.write(self._answer + "\n")
                self._answer = None
            self._stdout.flush()
        except OSError:
            self.forget_stdout()
            raise

    def forget_stdout(self) -> None:
        """Nobody reads any more, or a disk is full: the interpreter is not to try again when it ends."""
        self._answer = None
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stdout.fileno())
            os.close(nowhere)

    def close(self) -> None:
        """Give descriptor 1 back, unless it is led to stderr for good."""
        if self._copy is not None:
            with contextlib.suppress(OSError):
                self._copy.close()
        if self._for_good or self._descriptor_1 is None:
            return
        _flush_c()
        os.dup2(self._descriptor_1, 1)
        os.close(self._descriptor_1)


_CURRENT: ContextVar[Streams] = ContextVar("streams")


def current() -> Streams:
    """The streams of the command that runs."""
    return _CURRENT.get()


@contextlib.contextmanager
def streams(for_good: bool) -> Iterator[Streams]:
    """The streams for one command, fit to be written to.

    Args:
        for_good: the process ends with this command.

    Raises:
        ValueError: if stdout is closed.
    """
    stdout: TextIO | None = sys.stdout
    stderr: TextIO | None = sys.stderr
    if stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    elif stderr is sys.__stderr__:
        sys.stderr = _never_failing(sys.stderr)
    for stream in (stdout, stderr):
        _replace_what_cannot_be_encoded(stream)
    if stdout is None:
        raise ValueError("stdout is closed, so there is nowhere to write the answer to; send it to a file or /dev/null")
    made = Streams(stdout, for_good)
    token = _CURRENT.set(made)
    try:
        yield made
    finally:
        _CURRENT.reset(token)
        made.close()
        if not for_good:
            sys.stdout, sys.stderr = stdout, stderr


class _Beside(io.FileIO):
    """A file for what stands beside the answer: where it cannot be written, it is dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _never_failing(stderr: TextIO) -> TextIO:
    """The same stream; a full disk, or a reader that went away, takes nothing from the answer."""
    try:
        raw = _Beside(stderr.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return stderr
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stderr.encoding, errors="replace", line_buffering=True)


def _replace_what_cannot_be_encoded(stream: TextIO | None) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test may have put something simpler in the place of a real stream
        reconfigure(errors="replace")


def _flush_c() -> None:
    """Write what C libraries have printed and keep in memory."""
    import ctypes

    with contextlib.suppress(OSError, TypeError, AttributeError):  # not every system lets a process open itself
        ctypes.CDLL(None).fflush(None)
