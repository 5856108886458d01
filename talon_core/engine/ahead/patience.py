"""How long a call of a drafter may take before it is given up."""

from collections.abc import Hashable, Iterable

import attrs
from attrs.validators import gt


@attrs.define
class Patience:
    """A multiple of the longest call of the same kind so far.

    Attributes:
        times: as long as that.
        least: seconds, however short calls were: something else may have kept the machine.
        first: seconds, as long as none of the kind has come back: kernels may be compiled.
        longest: seconds of the longest call, by kind.
    """

    times: float = attrs.field(default=20.0, validator=gt(0))
    least: float = attrs.field(default=5.0, validator=gt(0))
    first: float = attrs.field(default=120.0, validator=gt(0))
    longest: dict[Hashable, float] = attrs.field(factory=dict)

    def seconds(self, kind: Hashable) -> float:
        """How long the next call of this kind may take."""
        longest = self.longest.get(kind)
        return self.first if longest is None else max(self.least, self.times * longest)

    def saw(self, kind: Hashable, seconds: Iterable[float]) -> None:
        """Calls of this kind have taken so long."""
        known = [*seconds]
        if known:
            self.longest[kind] = max([*known, self.longest.get(kind, 0.0)])
