"""Passes, or rounds of them, that C walks behind one another for as long as further ones are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from talon_kernels.recorded.tape import CannotRecord

if TYPE_CHECKING:
    from talon_core.target import StillWanted


def walk_on(
    walk: Callable[[int], int],
    brought: Callable[[int, int], Sequence[int]],
    most: int,
    wanted: StillWanted | None,
    each: bool = True,
) -> None:
    """Walk on, all at once, one by one, or up to where somebody is to be asked.

    C does not ask: an interrupt that comes during a pass would be lost where it calls Python.

    Args:
        walk: goes on up to so many passes or rounds, and says how many are done; raises LookupError where one cannot be
            repeated.
        brought: the tokens of those from so many on up to so many; none where a text has ended.
        most: how many at most.
        wanted: as that of `Further`.
        each: whether it is asked behind each of them; otherwise `walk` stops where it is to be asked.

    Raises:
        CannotRecord: if one cannot be repeated.
    """
    new: list[int] = []
    done = 0
    while done < most:
        before = done
        try:
            done = walk(before + 1 if wanted is not None and each else most)
        except LookupError as error:
            raise CannotRecord(str(error)) from error
        if wanted is None or done in (before, most):
            return
        tokens = brought(before, done)
        new += tokens
        if not tokens or not wanted(new):
            return
