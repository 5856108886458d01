"""The clock of rounds: a pass that was run ahead lies in the round that it was run for."""

from collections.abc import Callable

from talon_core.target import Verified


class RoundClock:
    """Tells the time as it would be if each pass were run in its own round.

    Where the target runs passes for rounds to come, this clock stands still for all but the first of them, and goes on
    by one in each of those rounds. So a round without a draft takes what such a round takes in the mean, and all
    together take the time that they took.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = 0.0  # seconds of passes whose rounds have not come
        self._each = 0.0  # of one of them

    def __call__(self) -> float:
        """The time, in seconds."""
        return self._now() - self._ahead

    def forget(self) -> None:
        """No rounds will come for what was run ahead: the time goes on where it is."""
        self._ahead = 0.0

    def ran_ahead(self, seconds: float) -> None:
        """So many seconds were spent on passes of rounds to come."""
        self._ahead = seconds

    def goes_on(self, seconds: float) -> None:
        """A pass that was run ahead, or what was done beside it, is asked for, and took so many seconds."""
        self._ahead = max(self._ahead - seconds, 0.0)

    def verified(self, verified: Verified, start: float, between: float = 0.0) -> float:
        """The target has answered; returns the seconds of a pass, one of several where several were run.

        Args:
            verified: what it has answered.
            start: when it was asked, by this clock.
            between: seconds of what was done between its passes for rounds to come; `goes_on` is told in these.
        """
        if verified.passes:
            self._each = (self() - start - between) / verified.passes
            self._ahead = (verified.passes - 1) * self._each + between
            return self._each
        seconds = self._each if verified.seconds is None else verified.seconds
        self.goes_on(seconds)
        return seconds
