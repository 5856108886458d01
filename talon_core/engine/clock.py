"""The clock of rounds: a pass that was run ahead lies in the round that it was run for."""

from collections.abc import Callable


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

    def verified(self, passes: int, start: float) -> float:
        """The target has answered; returns the seconds of a pass, one of several where several were run.

        Args:
            passes: how many it has run: none where the round's was run ahead, several with those of rounds to come.
            start: when it was asked, by this clock.
        """
        if passes:
            self._each = (self() - start) / passes
            self._ahead = (passes - 1) * self._each
        else:
            self._ahead = max(self._ahead - self._each, 0.0)
        return self._each
