"""What commands write: JSON on stdout, and everything that is not the answer on stderr."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from talon_core.basics.numerals import counted
from talon_core.basics.records import as_plain
from talon_core.cli.streams import current
from talon_core.rounds import Stats

WIDTH = 120
"""Columns of a wide table that goes to a file."""

PARTS = ("prefill", "draft", "policy", "verify", "accept", "commit", "other")
"""The parts of a generation's time, as in `Stats`."""


GOES_ON = "the same command with --out '{}' goes on from here"
"""What Ctrl-C leaves of work that is kept in a folder as it is done."""

BEST = "best by laws, best: with as many nodes as pay, the likeliest by the drafter's laws, and in hindsight"
"""The caption of the oracle's two columns of tokens a second."""


def debugging() -> bool:
    """Whether `TALON_DEBUG` asks for tracebacks and for every library's warnings."""
    return os.environ.get("TALON_DEBUG", "") not in ("", "0")


def stdout() -> Console:
    """A console for answers that are tables; brackets are text, as in the specs of several parts."""
    return Console(highlight=False, markup=False)


def wide_stdout() -> Console:
    """A console for tables of many columns, which are as wide in a file as on a large terminal."""
    console = stdout()
    if not console.is_terminal:
        console.width = WIDTH
    return console


def stderr() -> Console:
    """A console for what is beside the answer."""
    return Console(stderr=True, highlight=False, markup=False)


def note(text: str) -> None:
    """Tell something that the user should know and that stops nothing."""
    print(f"talon: {text}", file=sys.stderr, flush=True)


@contextmanager
def if_interrupted(left: str) -> Iterator[None]:
    """Have Ctrl-C inside say what it leaves; `talon_core.cli.run` says it, for every command in the same way.

    Args:
        left: what there is then, as in "nothing is saved".
    """
    try:
        yield
    except KeyboardInterrupt:
        current().interrupted = f"interrupted; {left}"
        raise


def print_json(answer: Mapping[str, Any]) -> None:
    """Answer with one object, which stdout gets when the command is over; values JSON has no word for become text."""
    current().answer(plain(answer))


def plain(value: Any) -> Any:
    """The same out of what JSON knows, as `records` writes it; what is nothing of that becomes text."""
    return as_plain(value, otherwise=str)


def seconds_of(stats: Stats) -> dict[str, float]:
    """Seconds of each part of a generation."""
    return {part: float(getattr(stats, f"{part}_seconds")) for part in PARTS}


def summary(stats: Stats, finish_reason: str) -> list[str]:
    """The lines under a generation."""
    total = stats.seconds or 1.0
    end = {
        "interrupted": "interrupted",
        "length": "ended by the length limit",
        "eos": "ended by the model",
        "stop": "ended by a stop string",
        "time": "ended by the time limit",
    }
    shares = "  ".join(f"{part} {100 * seconds / total:.0f}%" for part, seconds in seconds_of(stats).items())
    prepared = []
    if stats.hits + stats.misses:
        rounds = counted(stats.hits + stats.misses, "round")
        waited = 100 * stats.wait_seconds / total
        prepared = [f"prepared: {stats.hits} of {rounds} began with what was prepared; waited {waited:.0f}%"]
    return [
        f"{counted(stats.new_tokens, 'token')} in {stats.seconds:.2f} s, {end.get(finish_reason, finish_reason)}: "
        f"{stats.tokens_per_second:.1f} tokens/s, {stats.mean_accepted_tokens:.2f} tokens per target pass",
        f"time: {shares}",
        *prepared,
    ]


def mark_lossy(rule: str) -> None:
    """Say on stderr that a text is not the target's own."""
    text = f"LOSSY: rule '{rule}' changes what the model says; this is not its own text"
    stderr().print(text, style="bold red", soft_wrap=True)


def mark_claimed(policy: str, rule: str) -> None:
    """Say on stderr that nobody but a plugin says that a text is the target's own, and how to find out."""
    command = shlex.join(["talon", "certify", "--policy", policy, "--rule", rule])
    text = f"CLAIMED: that this is the model's own text is a plugin's word, without a certificate; check it: {command}"
    stderr().print(text, style="bold yellow", soft_wrap=True)
