"""How far a long command is, on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from talon_core.cli.output import note, stderr

SECONDS_BETWEEN_NOTES = 60.0
"""Where stderr is no terminal, the progress is a line now and then."""

Report = Callable[[int, int], None]
"""`report(done, all)`."""


@contextmanager
def progress(doing: str, things: str) -> Iterator[Report]:
    """What to call with the number of things that are done, and of all: a bar, or a line now and then.

    Args:
        doing: what is going on, as in "measuring".
        things: what is counted, as in "prompts".
    """
    console = stderr()
    if not console.is_terminal:
        yield _Notes(things).report
        return
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
    with Progress(*columns, *left, console=console, speed_estimate_period=600) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)


class _Notes:
    """Tells how far a command is, at most once a minute."""

    def __init__(self, things: str) -> None:
        self._things = things
        self._started: tuple[float, int] | None = None
        self._told = 0.0

    def report(self, done: int, all_: int) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started, self._told = (now, done), now
        elif now - self._told >= SECONDS_BETWEEN_NOTES or done == all_:
            began, before = self._started
            left = (now - began) / max(1, done - before) * (all_ - done)
            note(f"{done} of {all_} {self._things}" + (f", {left / 60:.0f} min left" if done < all_ else ""))
            self._told = now
