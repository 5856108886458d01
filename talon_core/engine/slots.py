"""Which sequence has which slot, how much memory slots take, and whose texts are kept in slots that are free."""

from collections.abc import Callable, Mapping
from itertools import count

import attrs
import numpy as np

from talon_core.target import rows_of_longest
from talon_core.tree import IntArray


@attrs.frozen
class Seat:
    """Where a sequence goes.

    Attributes:
        slot: its own.
        source: the slot, perhaps the same one, whose text begins as the prompt does.
        length: with so many tokens; 0 where nothing is shared.
    """

    slot: int
    source: int
    length: int


class Slots:
    """Slots that are taken or free; a free one may still hold the text of the sequence that was there before.

    Args:
        most: slots at most; None for any number.
        most_rows: rows of keys and values at most, those of all slots together; None for any number.
        occupied: slots of the target that are taken, by whomever; grows and shrinks with these.
        rows_of: how many rows the target keeps for slots of so much room, as `Target.rows`.
    """

    def __init__(
        self,
        most: int | None = None,
        most_rows: int | None = None,
        occupied: set[int] | None = None,
        rows_of: Callable[[Mapping[int, int]], int] = rows_of_longest,
    ) -> None:
        self._most = most
        self._most_rows = most_rows
        self._rows_of = rows_of
        self._occupied = occupied if occupied is not None else set()
        self._rooms: dict[int, int] = {}  # of the slots that are taken, and of those whose text is kept
        self._kept: dict[int, IntArray] = {}  # texts in free slots, the oldest first

    def missing(self, room: int) -> int | None:
        """The rows that are missing for a sequence that needs so many, if it were alone; None if it fits."""
        needed = self._rows_of({0: room})
        return needed - self._most_rows if self._most_rows is not None and needed > self._most_rows else None

    def take(self, prompt: IntArray, room: int, running: Mapping[int, IntArray]) -> tuple[Seat, list[int]] | None:
        """Find a slot for a sequence; None if there is none now.

        Args:
            prompt: its tokens, shape `(prompt,)`.
            room: rows that it needs.
            running: the texts that other slots hold at this moment, without what may still change.

        Returns:
            Where it goes, and the free slots whose texts are given up for it.
        """
        shared = {slot: _shared(prompt[:-1], text) for slot, text in {**running, **self._kept}.items()}
        source = max(shared, key=lambda slot: (shared[slot], slot in self._kept), default=0)
        length = shared.get(source, 0)
        for slot in self._candidates(source if length else None):
            given_up = self._given_up(slot, room)
            if given_up is None:
                continue
            if slot in self._kept and not (length and slot == source):
                given_up.append(slot)
            for other in given_up:
                self.forget(other)
            self._kept.pop(slot, None)
            self._rooms[slot] = room
            self._occupied.add(slot)
            if not length or source in given_up:
                return Seat(slot, slot, 0), given_up
            return Seat(slot, source, length), given_up
        return None

    def _candidates(self, source: int | None) -> list[int]:
        """Slots that could be taken, the best first: where the text is, then empty ones, then the oldest texts."""
        empty = next(slot for slot in count() if slot not in self._occupied)
        more = self._most is None or len(self._rooms) < self._most
        first = [slot for slot in self._kept if slot == source]
        return [*dict.fromkeys([*first, *([empty] if more else []), *self._kept])]

    def _given_up(self, slot: int, room: int) -> list[int] | None:
        """The texts that must be given up for a sequence in a slot, the oldest first; None if that does not help."""
        given_up: list[int] = []
        others = [kept for kept in self._kept if kept != slot]
        while self._too_large(slot, room, given_up):
            if len(given_up) == len(others):
                return None
            given_up.append(others[len(given_up)])
        return given_up

    def _too_large(self, slot: int, room: int, without: list[int]) -> bool:
        if self._most_rows is None:
            return False
        rooms = {**self._rooms, slot: room}
        left = {one: rows for one, rows in rooms.items() if one not in without}
        return self._rows_of(left) > self._most_rows

    def keep(self, slot: int, text: IntArray) -> None:
        """The sequence has left its slot; its text stays there until the slot is needed."""
        self._kept[slot] = text

    @property
    def taken(self) -> list[int]:
        """The slots of sequences and of texts."""
        return [*self._rooms]

    @property
    def kept(self) -> list[int]:
        """The free slots that hold a text, the oldest first."""
        return [*self._kept]

    def forget(self, slot: int) -> None:
        """The slot holds nothing."""
        self._rooms.pop(slot, None)
        self._kept.pop(slot, None)
        self._occupied.discard(slot)


def _shared(prompt: IntArray, text: IntArray) -> int:
    """How many tokens two texts begin with alike."""
    length = min(len(prompt), len(text))
    differ = np.flatnonzero(prompt[:length] != text[:length])
    return int(differ[0]) if len(differ) else length
