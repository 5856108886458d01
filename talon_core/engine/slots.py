"""Which sequence has which slot, how much memory slots take, and whose texts are kept in slots that are free."""

from collections.abc import Callable, Mapping
from itertools import count

import attrs
import numpy as np

from talon_core.target import rows_of_longest
from talon_core.tree import IntArray

FEWEST_SLOTS = 4
"""Slots that may be taken at least before one that only keeps a text is taken again, where neither slots nor rows are
bounded. There may be more where more sequences have run at a time: their slots are there anyway."""


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
        rows_of: how many rows are kept for slots of so much room, as `Target.rows` says it.
        memory: rows for which memory would do at best, which are the most where nobody bounds them; None if not known.
    """

    def __init__(
        self,
        most: int | None = None,
        most_rows: int | None = None,
        occupied: set[int] | None = None,
        rows_of: Callable[[Mapping[int, int]], int] = rows_of_longest,
        memory: int | None = None,
    ) -> None:
        self._most = most
        self._most_rows = most_rows if most_rows is not None else memory
        self._bounded = most is not None or most_rows is not None
        self._rows_of = rows_of
        self._occupied = occupied if occupied is not None else set()
        self._rooms: dict[int, int] = {}  # of the slots that are taken, and of those whose text is kept
        self._kept: dict[int, IntArray] = {}  # texts in free slots, the oldest first
        self._most_running = 0  # slots that were taken at a time, those with kept texts aside

    def missing(self, room: int) -> int | None:
        """The rows that are missing for a sequence that needs so many, if it were alone; None if it fits."""
        if self._most_rows is None:
            return None
        more = self._rows_of({0: room}) - self._most_rows
        return more if more > 0 else None

    def take(self, prompt: IntArray, room: int, running: Mapping[int, IntArray]) -> tuple[Seat, list[int]] | None:
        """Find a slot for a sequence; None if there is none now.

        It goes on in the slot of a kept text which its prompt contains as a whole. Any other text stays where it is,
        and what it begins with alike is copied from there. The text that is copied from is the last one to be given up.

        Args:
            prompt: its tokens, shape `(prompt,)`.
            room: rows that it needs.
            running: the texts that other slots hold at this moment, without what may still change.

        Returns:
            Where it goes, and the free slots whose texts are given up for it.
        """
        shared = {slot: _shared(prompt[:-1], text) for slot, text in {**running, **self._kept}.items()}
        within = [slot for slot, text in self._kept.items() if shared[slot] == len(text)]
        within.sort(key=lambda slot: -shared[slot])
        source = max(shared, key=lambda slot: (shared[slot], slot in within, slot in running), default=None)
        length = 0 if source is None else shared[source]
        for spared in [source, None] if length else [None]:
            for slot in self._candidates(within, spared):
                given_up = self._given_up(slot, room, spared)
                if given_up is not None:
                    return self._seat(slot, room, source if length else None, length, given_up)
        return None

    def _seat(
        self, slot: int, room: int, source: int | None, length: int, given_up: list[int]
    ) -> tuple[Seat, list[int]]:
        """Let a sequence have a slot; see `take`."""
        if slot in self._kept and slot != source:
            given_up = [*given_up, slot]
        for other in given_up:
            self.forget(other)
        self._kept.pop(slot, None)
        self._rooms[slot] = room
        self._occupied.add(slot)
        self._most_running = max(self._most_running, len(self._rooms) - len(self._kept))
        if source is None or source in given_up:
            return Seat(slot, slot, 0), given_up
        return Seat(slot, source, length), given_up

    def _candidates(self, within: list[int], spared: int | None) -> list[int]:
        """Slots that could be taken, the best first.

        Args:
            within: those whose texts the new one contains, the longest first: nothing is lost there.
            spared: the one that is taken last, as it is copied from otherwise.

        Returns:
            After these an empty slot, if there may be one more, then those of the oldest texts.
        """
        empty = next(slot for slot in count() if slot not in self._occupied)
        others = [slot for slot in self._kept if slot != spared]
        last = [slot for slot in self._kept if slot == spared]
        more = [empty] if self._most is None or len(self._rooms) < self._most else []
        grows = self._bounded or len(self._rooms) < max(FEWEST_SLOTS, self._most_running)
        return [*dict.fromkeys([*within, *(more if grows else []), *others, *more, *last])]

    def _given_up(self, slot: int, room: int, spared: int | None) -> list[int] | None:
        """The texts that must be given up for a sequence in a slot, the oldest first; None if that does not help."""
        given_up: list[int] = []
        others = [kept for kept in self._kept if kept not in (slot, spared)]
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
