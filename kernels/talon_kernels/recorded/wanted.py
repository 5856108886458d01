"""Passes, or rounds of them, that C walks behind one another for as long as further ones are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from talon_kernels.recorded.tape import CannotRecord

if TYPE_CHECKING:
    from talon_core.target import StillWanted


def walk_on(
    walk: Callable[[int], None], brought: Callable[[int], Sequence[int]], most: int, wanted: StillWanted | None
) -> None:
    """Walk on, all at once or one by one.

    C does not ask: an interrupt that comes during a pass would be lost where it calls Python.

    Args:
        walk: goes on up to so many passes or rounds; raises LookupError where one cannot be repeated.
        brought: behind that, the tokens of the last one of so many; none where a text has ended, or one was not done.
        most: how many at most.
        wanted: as that of `Further`.

    Raises:
        CannotRecord: if one cannot be repeated.
    """
    new: list[int] = []
    for count in [most] if wanted is None else range(1, most + 1):
        try:
            walk(count)
        except LookupError as error:
            raise CannotRecord(str(error)) from error
        if wanted is None or count == most:
            return
        tokens = brought(count)
        new += tokens
        if not tokens or not wanted(new):
            return
