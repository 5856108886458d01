"""How long a call of a drafter may take before it is given up."""

from collections.abc import Iterable

import attrs
from attrs.validators import gt


@attrs.define
class Patience:
    """A multiple of the longest call so far.

    Attributes:
        times: as long as that.
        least: seconds, however short calls were: something else may have kept the machine.
        first: seconds, as long as none has come back: kernels may be compiled.
        longest: seconds of the longest call.
    """

    times: float = attrs.field(default=20.0, validator=gt(0))
    least: float = attrs.field(default=5.0, validator=gt(0))
    first: float = attrs.field(default=120.0, validator=gt(0))
    longest: float | None = None

    @property
    def seconds(self) -> float:
        """How long the next one may take."""
        return self.first if self.longest is None else max(self.least, self.times * self.longest)

    def saw(self, seconds: Iterable[float]) -> None:
        """Calls have taken so long."""
        for one in seconds:
            self.longest = one if self.longest is None else max(self.longest, one)
