"""What took time in a round, and beside it."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType

from talon_core.rounds import Span


class timed(AbstractContextManager[None]):
    """What is done inside is a span, if it gets through; a class and no generator, as a round enters several.

    Args:
        part: whose it is.
        now: the clock, in seconds.
        to: lists that get it.
        work: what of the part it is, as `Span.work`.
    """

    __slots__ = ("_now", "_part", "_start", "_to", "_work")

    def __init__(self, part: str, now: Callable[[], float], *to: list[Span], work: str | None = None) -> None:
        self._part, self._now, self._to, self._work = part, now, to, work

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            span = Span(self._part, self._start, self._now(), self._work)
            for spans in self._to:
                spans.append(span)


class SlotSpans(dict[int, list[Span]]):
    """The spans of each slot's round, in the order in which they ended.

    Args:
        slots: those that take part.
        now: the clock, in seconds.
    """

    def __init__(self, slots: Iterable[int], now: Callable[[], float]) -> None:
        super().__init__((slot, []) for slot in slots)
        self._now = now

    def of(self, part: str, slots: Iterable[int], work: str | None = None) -> timed:
        """What is done inside is a part of these slots' rounds; `work` as `Span.work`."""
        return timed(part, self._now, *[self[slot] for slot in slots], work=work)
