"""What took time beside a round's own parts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from talon_core.rounds import Span


class Spans:
    """Takes note of stretches of time.

    Args:
        now: the clock, in seconds.

    Attributes:
        found: in the order in which they ended.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.found: list[Span] = []
        self._now = now

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """What is done inside is of this part."""
        start = self._now()
        yield
        self.found.append(Span(part, start, self._now()))
