"""How long a call of a drafter may take before it is given up."""

from collections.abc import Callable, Hashable, Iterable
from time import perf_counter

import attrs
from attrs.validators import gt

LOOK = 0.05
"""Seconds between two looks at whether the user has asked for the end."""

HURRIED_WORDS = "before the text was broken off"
"""In what time a call was to come back where the user has asked for the end."""


@attrs.define
class Patience:
    """A multiple of the longest call of the same kind so far.

    Attributes:
        times: as long as that.
        least: seconds, however short calls were: something else may have kept the machine.
        first: seconds, as long as none of the kind has come back: kernels may be compiled.
        hurried: seconds, however long a call may take otherwise, from when the user has asked for the end.
        longest: seconds of the longest call, by kind.
    """

    times: float = attrs.field(default=20.0, validator=gt(0))
    least: float = attrs.field(default=5.0, validator=gt(0))
    first: float = attrs.field(default=120.0, validator=gt(0))
    hurried: float = attrs.field(default=1.0, validator=gt(0))
    longest: dict[Hashable, float] = attrs.field(factory=dict)
    _hurried_at: float | None = attrs.field(default=None, init=False)

    @property
    def is_hurried(self) -> bool:
        """Whether the user has asked for the end."""
        return self._hurried_at is not None

    def hurry(self, hurried: bool) -> None:
        """The user has asked for the end, which may be said in the middle of `has_come`; or that is over."""
        self._hurried_at = perf_counter() if hurried else None

    def has_come(self, wait: Callable[[float], bool], seconds: float) -> bool:
        """Wait for an answer; whether it has come.

        Args:
            wait: waits for it, so many seconds at most, and says whether it has come.
            seconds: that it may take.
        """
        end = perf_counter() + seconds
        while not wait(min(max(end - perf_counter(), 0.0), LOOK)):
            if self._hurried_at is not None:
                end = min(end, self._hurried_at + self.hurried)
            if perf_counter() >= end:
                return False
        return True

    def seconds(self, kind: Hashable) -> float:
        """How long the next call of this kind may take."""
        longest = self.longest.get(kind)
        return self.first if longest is None else max(self.least, self.times * longest)

    def saw(self, kind: Hashable, seconds: Iterable[float]) -> None:
        """Calls of this kind have taken so long."""
        known = [*seconds]
        if known:
            self.longest[kind] = max([*known, self.longest.get(kind, 0.0)])
