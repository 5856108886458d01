"""A clock that tells the same times whenever the same world is run again, for policies that look at it."""

from itertools import cycle

STEPS = (3e-3, 1e-3, 2e-2, 5e-4, 8e-3, 1e-2, 2e-3)
"""Seconds from one look at the clock to the next, over and over: some spans are long, some are short."""


class Ticks:
    """A clock that goes on by `STEPS`, one for each time that somebody looks."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin at 0 again."""
        self._now = 0.0
        self._steps = cycle(STEPS)

    def __call__(self) -> float:
        self._now += next(self._steps)
        return self._now
