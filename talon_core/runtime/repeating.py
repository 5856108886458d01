"""Passes on a host that are written down once and repeated without Python, with the same bits."""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import torch
from torch import Tensor

from talon_core.errors import of_the_machine, one_line
from talon_core.runtime.cache import TreeCache
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.recording import FurtherPasses, PassRecorder, Trusted

if TYPE_CHECKING:
    from talon_core.runtime.executor import Numbers, TreeView
    from talon_core.runtime.host_draws import DrawnAhead
    from talon_core.target import Behind, StillWanted

T = TypeVar("T")

RECORDED_AFTER = 2
"""Passes of a kind that run as they are before one is written down, which takes as long as a few of them."""

CHECKED = 1
"""Passes of a kind, with one node, with several and with those of several sequences, that are run both ways."""


MOST_KINDS = 16
"""Kinds of passes that are kept at a time; each has memory of its own, for what it finds on the way."""


@attrs.define
class _Kind:
    """What became of a kind of pass."""

    recorded: Any = None  # a `RecordedPass`
    runs: int = 0
    checked: dict[tuple[bool, bool, bool], int] = attrs.field(factory=dict)


class RepeatedPasses:
    """The passes of a host, each kind written down once and repeated from then on.

    A kind of pass is written down when it comes for the third time. What is repeated is held against the pass itself,
    once with one node, once with several and once with several sequences, and given up unless it has the same bits.
    Where the largest of some numbers alone are wanted, these are compared as well, after all that the pass returns.

    Args:
        recorder: writes passes down.
        cache: the keys and values that they work on.

    Attributes:
        seen: why all passes run as they are for now; None where they need not.
        prepared: how many passes took longer than others like them will: those that came before theirs was written
            down, those in which it was, and those that were run both ways. Once there are more kinds than are kept,
            nobody knows whether the first ones of a kind are such: they are not counted then.
    """

    def __init__(self, recorder: PassRecorder, cache: TreeCache) -> None:
        self._recorder = recorder
        self._cache = cache
        self._kinds: dict[Hashable, _Kind] = {}
        self._refused: dict[Hashable, str] = {}
        self.seen: str | None = None
        self.prepared = 0
        self._dropped = False

    @property
    def recorded(self) -> int:
        """How many kinds are written down."""
        return sum(kind.recorded is not None for kind in self._kinds.values())

    @property
    def failure(self) -> str | None:
        """Why a kind of pass is not repeated, the last one of which that is so."""
        return next(reversed(self._refused.values()), None)

    def forget(self) -> None:
        """Give up what was written down."""
        self._dropped = False
        self._kinds.clear()
        self._refused.clear()

    def run(
        self,
        inputs: PassInputs,
        work: "Callable[[TreeView], T]",
        kind: Hashable,
        more: "Mapping[str, Numbers]",
        plainly: Callable[[], T],
        set_up: Callable[[], None],
        chosen: Callable[[T], Any] | None = None,
    ) -> T:
        """Do a pass, in one way or the other.

        Args:
            inputs: as for `Executor.run`, and so are the next three.
            work: the pass.
            kind: tells different passes apart.
            more: further numbers.
            plainly: does the pass as it is.
            set_up: is called before it is written down, as `plainly` does by itself.
            chosen: the part of what it returns that is wanted, where the numbers are not of which it takes the largest;
                None where all is.

        Returns:
            What the pass returns, of which anything may stand beside what `chosen` takes.
        """
        queries = inputs.layout.queries
        if self.seen is not None or kind in self._refused or queries > self._recorder.most:
            return plainly()
        own = self._kinds.pop(kind) if kind in self._kinds else _Kind()
        self._kinds[kind] = own  # the latest stands last
        own.runs += 1
        if len(self._kinds) > MOST_KINDS:
            self._kinds.pop(next(iter(self._kinds)))
            self._dropped = True
        if own.runs <= RECORDED_AFTER:
            self.prepared += not self._dropped
            return plainly()
        if own.recorded is None or not own.recorded.fits(queries, more):
            set_up()  # an error of it is none of the pass, and what it does is no part of it
            try:
                own.recorded, own.checked = self._recorder.record(work, self._cache, queries, more), {}
            except Exception as error:  # a pass that is watched may fail in ways of its own
                if of_the_machine(error):
                    raise
                self._refuse(kind, one_line(error))
                self.prepared += 1
                return plainly()
        sort = _sort(inputs, chosen is not None)
        unchecked = own.checked.get(sort, 0) < CHECKED
        self.prepared += unchecked
        expected = plainly() if unchecked else None
        self._cache.make_room_for(inputs.counts)
        try:
            made: T = own.recorded.run(inputs, more, chosen is not None and not unchecked)
            same = expected is None or _alike(expected, made)
            if chosen is not None and expected is not None and same:  # all is compared, and then what is chosen alone
                same = _alike(chosen(expected), chosen(own.recorded.run(inputs, more, True)))
        except RuntimeError as error:
            if of_the_machine(error):
                raise
            self._refuse(kind, one_line(error))
            return plainly() if expected is None else expected
        if expected is None:
            return made
        own.checked[sort] = own.checked.get(sort, 0) + 1
        if not same:
            self._refuse(kind, "what was written down of it gave other numbers than the pass itself")
        return expected

    def trusted(self, kind: Hashable, choosing: bool) -> Trusted | None:
        """What is written down of a kind of pass; None where nothing is, or nothing is repeated now.

        Args:
            kind: as for `run`.
            choosing: whether a part of what it returns is wanted alone.
        """
        own = self._kinds.get(kind)
        if self.seen is not None or own is None or own.recorded is None:
            return None
        self._kinds[kind] = self._kinds.pop(kind)  # the latest stands last
        one, several = (own.checked.get((many, False, choosing), 0) >= CHECKED for many in (False, True))
        return Trusted(own.recorded, one, several)

    def run_on(
        self,
        inputs: PassInputs,
        kind: Hashable,
        passes: int,
        ends: Collection[int],
        chosen: Callable[[Any], Any],
        draws: "DrawnAhead | None" = None,
        wanted: "StillWanted | None" = None,
        behind: "Behind | None" = None,
    ) -> FurtherPasses | None:
        """Several passes over trees of a root alone, one behind another, where what is written down can be trusted.

        Args:
            inputs: of the first.
            kind: as for `run`.
            passes: as for `RecordedPass.run_on`, and so are the next five.
            ends: likewise.
            chosen: likewise.
            draws: likewise.
            wanted: likewise.
            behind: likewise.

        Returns:
            As `RecordedPass.run_on`; None where the first has to be done by itself.
        """
        own = self._kinds.get(kind)
        queries = inputs.layout.queries
        if self.seen is not None or own is None or own.recorded is None or not own.recorded.fits(queries, {}):
            return None
        self._kinds[kind] = self._kinds.pop(kind)  # the latest stands last
        if own.checked.get(_sort(inputs, draws is None), 0) < CHECKED:
            return None
        try:
            found: FurtherPasses | None = own.recorded.run_on(inputs, passes, ends, chosen, draws, wanted, behind)
        except RuntimeError:
            return None  # it is found again, and told of, where the pass is done by itself
        return found

    def _refuse(self, kind: Hashable, why: str) -> None:
        self._refused[kind] = why
        self._kinds.pop(kind, None)


def _sort(inputs: PassInputs, choosing: bool) -> tuple[bool, bool, bool]:
    """Passes of a kind that are run both ways for themselves."""
    return inputs.layout.queries > 1, sum(count > 0 for count in inputs.counts) > 1, choosing


def _alike(expected: Any, made: Any) -> bool:
    """Whether two results of a pass are the same to the bit."""
    if isinstance(expected, tuple | list):
        return len(expected) == len(made) and all(map(_alike, expected, made))
    if isinstance(expected, Tensor):
        if expected.dtype != made.dtype or expected.shape != made.shape:
            return False
        if expected.dtype is torch.float32:
            expected, made = expected.contiguous().view(torch.int32), made.contiguous().view(torch.int32)
        return torch.equal(expected, made)
    return bool(expected == made)
