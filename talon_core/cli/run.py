"""Running the command line: what an exception becomes on stderr, and the exit status."""

import _thread
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import typer

from talon_core.cli import INTERRUPTED
from talon_core.cli.app import app
from talon_core.cli.output import debugging, note
from talon_core.cli.streams import Streams, asks_for_json, streams
from talon_core.errors import PluginError, of_the_machine, one_line

BAD_INPUT = 2
PIPE_CLOSED = 141

SELDOM = (100_000, 50, 100)
"""The garbage collector's thresholds while a command runs."""

NARROWEST = 20
"""Columns below which no table can be read."""

USAGE_ERRORS: tuple[type[BaseException], ...] = typer.BadParameter.__mro__[1:3]
"""Typer's `UsageError` and `ClickException`, which are click's own or typer's copies of them, by version."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the process's own, with which the process ends.

    With `--json` stdout gets one object, whatever happens: the answer, or `{"error": sentence}`, or where an answer was
    there before the error, both in one.

    Returns:
        0 if it did what was asked, 1 if it says so itself, 2 for bad input or a broken plugin, 130 after Ctrl-C, 141 if
        nobody reads its output any more.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with (
            streams(for_good=arguments is None) as out,
            _log_on_stderr(),
            _quiet_libraries(),
            _wide_enough(),
            _interruptible(),
            _seldom_collected(),
        ):
            return _finished(out, _status(out, given))
    except ValueError as error:  # of the streams
        note(str(error))
        return BAD_INPUT


def _status(out: Streams, given: Sequence[str]) -> int:
    """Run the command; what went wrong is told on stderr, and to whoever waits for JSON."""
    try:
        status = _commands()(given, prog_name="talon", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        out.forget_stdout()
        return PIPE_CLOSED
    except SystemExit as leaving:  # typer and rich meet a closed pipe before we do, and leave with status 1
        if isinstance(leaving.__context__, BrokenPipeError):
            out.forget_stdout()
            return PIPE_CLOSED
        return _told(out, given, f"a plugin or a library has called sys.exit({leaving.code!r})")
    except BaseException as error:
        if debugging() or not _has_known_cause(error):
            _told(out, given, f"{type(error).__name__}: {sentence(error)}", on_stderr=False)
            _finished(out, BAD_INPUT)
            raise
        return _told(out, given, sentence(error))
    if status == INTERRUPTED and out.interrupted is not None:
        note(out.interrupted)
    if status == INTERRUPTED and not out.answered:
        return _told(out, given, "interrupted", on_stderr=False, status=status)
    return status if isinstance(status, int) else 0


@cache
def _commands() -> Any:
    """All commands as they are parsed; whoever runs several in one process has them made once."""
    return typer.main.get_command(app)


def _told(out: Streams, given: Sequence[str], wrong: str, *, on_stderr: bool = True, status: int = BAD_INPUT) -> int:
    if on_stderr:
        note(wrong)
    if out.json or asks_for_json(given):
        out.only_json()
        out.error(wrong)
    return status


def _finished(out: Streams, status: int) -> int:
    """Write what the command has left to be written, and return the exit status."""
    try:
        out.finish()
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError as error:
        if status != BAD_INPUT:  # it may be what went wrong already
            note(sentence(error))
        return BAD_INPUT
    return status


def sentence(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, USAGE_ERRORS):
        ctx = getattr(error, "ctx", None)
        hint = f" (see '{ctx.command_path} --help')" if ctx is not None else ""
        said = one_line(error.format_message())  # type: ignore[attr-defined]
        if type(error).__name__ == "MissingParameter":  # click's own or typer's copy of it
            about = getattr(getattr(error, "param", None), "help", None)
            said = f"{said.removesuffix('.')}: {one_line(about).removesuffix('.')}" if about else said
        return f"{said}{hint}"
    if isinstance(error, OSError) and error.strerror:
        where = f": '{error.filename}'" if error.filename else ""
        return one_line(f"{error.strerror}{where}")
    if of_the_machine(error):
        return f"out of memory; a smaller model or a smaller budget needs less ({one_line(error)})"
    return one_line(error)


def _has_known_cause(error: BaseException) -> bool:
    """Whether an error is about what the user gave; `KeyError` and `IndexError` are about our own mistakes."""
    if isinstance(error, KeyError | IndexError):
        return False
    known = (*USAGE_ERRORS, ValueError, LookupError, PluginError, OSError)
    return isinstance(error, known) or of_the_machine(error)


class _OnStderr(logging.Handler):
    """Says what TALON and its plugins log as the command line says everything."""

    def emit(self, record: logging.LogRecord) -> None:
        note(one_line(record.getMessage()))


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Show warnings of the logger `talon_core` and its children on stderr, with `TALON_DEBUG` all it tells."""
    logger, handler = logging.getLogger("talon_core"), _OnStderr()
    before = logger.level
    logger.setLevel(logging.INFO if debugging() else logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def _wide_enough() -> Iterator[None]:
    """Leave no terminal so narrow that rich and typer print nothing, or a letter a line; 0 says that nobody knows."""
    told = os.environ.get("COLUMNS", "")
    narrow = told.isdecimal() and int(told) < NARROWEST
    if narrow:
        os.environ["COLUMNS"] = str(NARROWEST) if int(told) else "80"
    try:
        yield
    finally:
        if narrow:
            os.environ["COLUMNS"] = told


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let no Ctrl-C be lost that comes in a finalizer, or a callback of the garbage collector, as hypothesis has one.

    There Python prints the KeyboardInterrupt and goes on; so it is raised again a moment later.
    """
    before = sys.unraisablehook

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _interrupt).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt() -> None:
    """Do what Ctrl-C does, so that the main thread hears it even while it sleeps, where the system can do that."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let the garbage collector look seldom: what torch and transformers make at their import stays."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    with warnings.catch_warnings():
        if not debugging():
            warnings.filterwarnings("ignore", module=r"(transformers|torch|huggingface_hub|tokenizers|gguf)(\..*)?$")
        yield
