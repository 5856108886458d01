"""Running the command line: what an exception becomes on stderr, and the exit status."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

import typer

from talon_core.cli.app import app
from talon_core.cli.output import debugging
from talon_core.errors import PluginError

BAD_INPUT = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

USAGE_ERRORS: tuple[type[BaseException], ...] = typer.BadParameter.__mro__[1:3]
"""Typer's `UsageError` and `ClickException`, which are click's own or typer's copies of them, by version."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0 if it did what was asked, 1 if it says so itself, 2 for bad input or a broken plugin, 130 after Ctrl-C, 141 if
        nobody reads its output any more.
    """
    for stream in (sys.stdout, sys.stderr):
        _replace_what_cannot_be_encoded(stream)
    with warnings.catch_warnings():
        if not debugging():
            warnings.filterwarnings("ignore", module=r"(transformers|torch|huggingface_hub|tokenizers)(\..*)?$")
        try:
            status = app(arguments, prog_name="talon", standalone_mode=False)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except BrokenPipeError:
            _forget_stdout()
            status = PIPE_CLOSED
        except SystemExit as leaving:  # typer and rich meet a closed pipe before we do, and leave with status 1
            if not isinstance(leaving.__context__, BrokenPipeError):
                raise
            _forget_stdout()
            status = PIPE_CLOSED
        except Exception as error:
            if debugging() or not _has_known_cause(error):
                raise
            _tell(sentence(error))
            status = BAD_INPUT
    return status if isinstance(status, int) else 0


def sentence(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, USAGE_ERRORS):
        ctx = getattr(error, "ctx", None)
        hint = f" (see '{ctx.command_path} --help')" if ctx is not None else ""
        return f"{_one_line(error.format_message())}{hint}"  # type: ignore[attr-defined]
    if isinstance(error, OSError) and error.strerror:
        where = f": '{error.filename}'" if error.filename else ""
        return f"{error.strerror}{where}"
    if isinstance(error, MemoryError) or _is_cuda_out_of_memory(error):
        return f"out of memory; a smaller model or a smaller budget needs less ({_one_line(str(error))})"
    return _one_line(str(error)) or type(error).__name__


def _has_known_cause(error: Exception) -> bool:
    """Whether an error is about what the user gave; `KeyError` and `IndexError` are about our own mistakes."""
    if isinstance(error, KeyError | IndexError):
        return False
    known = (*USAGE_ERRORS, ValueError, LookupError, PluginError, OSError, MemoryError)
    return isinstance(error, known) or _is_cuda_out_of_memory(error)


def _is_cuda_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError"  # torch's; torch is not imported to find that out


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tell(text: str) -> None:
    print(f"talon: {text}", file=sys.stderr)


def _replace_what_cannot_be_encoded(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test may have put something simpler in the place of a real stream
        reconfigure(errors="replace")


def _forget_stdout() -> None:
    """Nobody reads any more: keep the interpreter from complaining when it flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
