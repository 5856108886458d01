"""A key-value cache whose sequences take pages of rows as they grow, so that a long one lengthens no other."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core.runtime.cache import KeyValueCache, Scattered, bucket, check_slot
from talon_core.runtime.streams import used_here
from talon_core.runtime.transfers import sent
from talon_core.tree import IntArray

PAGE_ROWS = 64
"""Rows of a page: a tile of keys, of which the kernels read one at a time. Of a larger page more is unused where a text
ends, and a smaller one would cut tiles."""

FEWEST_PAGES = 16
"""Pages that a table has room for at least, so that short texts are all of one shape."""

PADDING = 0
"""The page that no sequence has: what is padding is written to it, and nobody reads it."""


class PagedCache(KeyValueCache):
    """Keys and values in a pool of pages for each layer; which of them a slot has is the same in all layers.

    Each layer's buffers have shape `(pages, kv_heads, PAGE_ROWS, head_dim)`. Row `r` of a slot is row `r % PAGE_ROWS`
    of its page `r // PAGE_ROWS`. A slot takes pages when rows are to be written to them, and gives all back when it is
    closed. The pool has as many as all open slots need that come to the room which they were opened with; it is given
    up for a larger one where that is too few, which loses nothing.

    Args:
        spare: tells how many bytes of buffers may stay, or be made, where smaller ones would do. Whoever keeps their
            addresses needs others less often then.
    """

    def __init__(self, spare: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._spare = spare
        self._pages: dict[int, NDArray[np.int32]] = {}  # by slot, in the order of its rows
        self._free: list[int] = []  # the last one is taken first
        self._count = 0  # of the buffers
        self._needed = 0  # most pages since all slots were closed
        self._had = 0  # most pages of buffers that were given up for others
        self._page_bytes = 0  # of all layers, as those had them
        self._width = FEWEST_PAGES

    def open(self, slot: int, room: int) -> None:
        """As `KeyValueCache.open`.

        Buffers are given up where they were much too large for all that came between the last two times that every
        slot was closed, unless they are no larger than may be spared.
        """
        check_slot(slot)
        self.close(slot)
        if not self._rooms:
            if self._count > 4 * self._needed and not 0 < self.nbytes <= self._spare():
                self._give_up()
                self._had, self._width = 0, FEWEST_PAGES
            self._needed = 0
            self.lengths.clear()
            self.staged.clear()
        self._pages[slot] = np.empty(0, dtype=np.int32)
        self._rooms[slot] = room
        self._reach(slot)
        self._needed = max(self._needed, self._wanted())

    @torch.inference_mode()  # as passes, in which buffers are made
    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        self.check_open([source])
        length = min(length, self.lengths[source])
        if slot == source:
            self._rooms[slot] = room
            self._give_back(slot, self._pages[slot][_pages_of(length) :])
        else:
            self.open(slot, room)
            self._take({slot: length})
            kept = self._pages[source][: _pages_of(length)].tolist()
            for buffer in self.buffers():
                buffer[self._pages[slot].tolist()] = buffer[kept]
        self.lengths[slot], self.staged[slot] = length, 0
        return length

    def close(self, slot: int) -> None:
        super().close(slot)
        if slot in self._pages:
            self._give_back(slot, self._pages[slot])
            del self._pages[slot]

    def rows_for(self, rooms: Mapping[int, int]) -> int:
        return PAGE_ROWS * sum(map(_pages_of, rooms.values()))

    def make_room_for(self, counts: Sequence[int]) -> None:
        starts = zip(self.lengths, self.staged, counts, strict=True)
        self._take({slot: sum(rows) for slot, rows in enumerate(starts) if rows[-1]})

    def stage_at(self, pages: Tensor, rows: Tensor) -> None:
        """Announce passes over trees that write the `i`-th of their rows to row `rows[i]` of page `pages[i]`.

        Args:
            pages: shape `(rows,)`, int64, on the device; what it holds is read when a layer writes, and again in each
                replay of a captured graph.
            rows: likewise.
        """
        self._writes = Scattered(pages, rows)

    def places(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Where the announced pass writes its rows, for a layer that writes them itself and does not call `update`.

        Its buffers are those that `layer` returns.

        Args:
            device: where the layer is.

        Returns:
            Pages and rows there, as `stage_at` was given them, on the device; None if the pass is not over trees.
        """
        return self._writes.places(device) if isinstance(self._writes, Scattered) else None

    def stage_prompts(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        start, longest = self.lengths[slots[0]], max(counts)
        self._take({slot: start + count for slot, count in zip(slots, counts, strict=True)})
        every, lasts = np.arange(start + longest), start + np.array(counts)[:, None] - 1
        # what is padding is no row of anybody's; where it would be read, a row that is there stands for it
        rows = np.minimum(every, np.maximum(lasts, 0))  # (slots, end)
        pages = np.take_along_axis(self.table(slots), rows // PAGE_ROWS, axis=1)
        written = np.where(every > lasts, PADDING, pages)
        self._writes = _Prompts(np.stack([pages, written, rows % PAGE_ROWS]).astype(np.int64), start)

    def table(self, slots: Sequence[int]) -> NDArray[np.int32]:
        """The pages of some slots, `PADDING` behind those that a slot has.

        Returns:
            Shape `(slots, width)`, int32.
        """
        table = np.full((len(slots), self._width), PADDING, dtype=np.int32)
        for row, slot in zip(table, slots, strict=True):
            own = self._pages[slot]
            row[: len(own)] = own
        return table

    def layer(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._layer(layer_idx, keys, values, self._count, PAGE_ROWS)

    @property
    def width(self) -> int:
        """Pages of each slot that a table has room for: one of few, which does not fall while slots are open."""
        return self._width

    @property
    def pages(self) -> Mapping[int, Sequence[int]]:
        """The pages that each open slot has now, in the order of its rows."""
        return {slot: own.tolist() for slot, own in self._pages.items()}

    @property
    def free(self) -> int:
        """Pages of the pool that no slot has."""
        return len(self._free)

    def _wanted(self) -> int:
        """Pages of a pool in which each slot has room for what it was opened with; with the one for padding."""
        return 1 + sum(max(_pages_of(room), len(self._pages[slot])) for slot, room in self._rooms.items())

    def _take(self, ends: Mapping[int, int]) -> None:
        """Let slots have pages for so many rows each; a slot that has more keeps them."""
        if all(end <= PAGE_ROWS * len(self._pages[slot]) for slot, end in ends.items()):
            return
        for slot, end in ends.items():
            if end > self._rooms[slot]:  # a text is longer than was thought: do not come back soon
                self._rooms[slot] = end + end // 2
        wanted = self._wanted()
        self._needed = max(self._needed, wanted)
        if wanted > self._count:
            self._grow(wanted)
        self._width = max(self._width, bucket(max(map(_pages_of, self._rooms.values()))))
        for slot, end in ends.items():  # those that had enough, too: where nothing is kept, growing takes all pages
            missing = _pages_of(end) - len(self._pages[slot])
            taken = np.array([self._free.pop() for _ in range(missing)], dtype=np.int32)
            self._pages[slot] = np.append(self._pages[slot], taken)

    def _give_back(self, slot: int, pages: NDArray[np.int32]) -> None:
        """The last pages of a slot are free."""
        self._pages[slot] = self._pages[slot][: len(self._pages[slot]) - len(pages)]
        self._free += pages[::-1].tolist()

    def _grow(self, wanted: int) -> None:
        """Have so many pages, or more; those that slots have stay what they are."""
        self._note_size()
        if not self._keeps:
            for slot, own in self._pages.items():
                self._give_back(slot, own)
            self._drop()
        count = self._generous(wanted)
        self.reallocations += 1  # first: memory may be too short for the buffers behind some
        try:
            for buffers in (self._keys, self._values):
                for layer, old in buffers.items():
                    new = old.new_empty((count, *old.shape[1:]))
                    new[: self._count] = old[: self._count]
                    used_here(old)
                    buffers[layer] = new
        except BaseException:  # those of all layers are as long as before
            for buffers in (self._keys, self._values):
                longer = [layer for layer, buffer in buffers.items() if len(buffer) > self._count]
                buffers.update({layer: buffers[layer][: self._count] for layer in longer})
            raise
        self._free[:0] = reversed(range(max(self._count, PADDING + 1), count))
        self._count = count

    def _give_up(self) -> None:
        """Have no buffers; all slots are closed."""
        self._note_size()
        self._drop()

    def _drop(self) -> None:
        self.reallocations += 1  # first: somebody may interrupt what follows
        self._free.clear()
        self._count = 0
        used_here(*self.buffers())
        self._keys.clear()
        self._values.clear()

    def _note_size(self) -> None:
        """Before buffers are given up for others: how large they are."""
        if self._keys and self._count:
            self._page_bytes = self.nbytes // self._count
            self._had = max(self._had, self._count)

    def _generous(self, wanted: int) -> int:
        """How many pages new buffers have that need so many: more, as long as that may be spared."""
        for most in (max(wanted, self._had), wanted):
            roomy = bucket(most)
            if 0 < roomy * self._page_bytes <= self._spare():
                return roomy
        return wanted


def _pages_of(rows: int) -> int:
    return -(-rows // PAGE_ROWS)


class _Prompts:
    """Writes the rows of several prompts, and gathers them with those before them.

    Args:
        places: of each row of each prompt, those before this pass too: the page where it is read, the page where it is
            written, and the row there, shape `(3, prompts, end)`, int64.
        start: the first that is written.
    """

    def __init__(self, places: IntArray, start: int) -> None:
        self._places = places
        self._start = start
        self._at: Tensor | None = None

    def __call__(self, buffer: Tensor, new: Tensor) -> Tensor:
        if self._at is None or self._at.device != buffer.device:  # once for all layers of a device
            self._at = sent(self._places, buffer.device)
        pages, written, rows = self._at
        own = slice(self._start, None)
        buffer[written[:, own], :, rows[:, own]] = new.transpose(1, 2)  # (prompts, rows, kv_heads, head_dim)
        return buffer[pages, :, rows].transpose(1, 2) if self._start else new
