"""Preallocated key-value caches with a tree region behind each sequence's committed prefix."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor

from talon_core.errors import is_whole
from talon_core.runtime.streams import used_here
from talon_core.target import check_open, rows_of_longest
from talon_core.tree import IntArray


def bucket(count: int) -> int:
    """One of few sizes that has room for `count`: a power of two, or from 32 on half way to the next."""
    size = 1
    while size < count:
        size *= 2
    return size * 3 // 4 if size > 32 and count <= size * 3 // 4 else size


class KeyValueCache(ABC):
    """Keys and values of sequences in slots: of each `lengths[slot]` committed rows, then the rows of its tree.

    A model sees it as its cache and calls `update` and `get_seq_length` alone; nothing of transformers'
    own caches is used. Each layer's buffers have four dimensions, of which the second is the heads and the last the
    size of a head, and are allocated when the layer first writes, so layers may differ in heads and head size. Layers
    are told apart by their index, which may have gaps.

    Attributes:
        lengths: committed rows of each slot; 0 for one that is not open.
        staged: rows of its tree.
        reallocations: how often the buffers were given up for others; who keeps their addresses looks here.
        passes: how many passes over trees have been run.
        turns: how often a slot was given back; to another text it is given back first.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.staged: list[int] = []
        self.reallocations = 0
        self.passes = 0
        self.turns = 0
        self._row_bytes: dict[int, int] = {}  # of each layer that has ever written
        self._rooms: dict[int, int] = {}  # of the slots that are open
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._writes: Write = _nowhere
        self._latest: ReferenceType[Tensor] | None = None  # the keys that `update` gave

    @abstractmethod
    def open(self, slot: int, room: int) -> None:
        """Let a sequence have a slot, with so many rows, committed and staged together; more are made where needed.

        Raises:
            ValueError: if the slot is no whole number of at least 0.
        """

    def _reach(self, slot: int) -> None:
        """Have numbers for all slots up to this one."""
        grown = max(0, slot + 1 - len(self.lengths))
        self.lengths += [0] * grown
        self.staged += [0] * grown

    @abstractmethod
    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        """As `open`, taking over the first rows that another slot, or this one, has committed.

        Returns:
            How many: `length`, or as many as there are.
        """

    def check_open(self, slots: Iterable[int]) -> None:
        """Make sure that these slots are open.

        Raises:
            ValueError: for one that is not.
        """
        check_open(slots, self._rooms)

    def close(self, slot: int) -> None:
        """Forget a sequence."""
        self.turns += 1
        self._rooms.pop(slot, None)
        if slot < len(self.lengths):
            self.lengths[slot] = self.staged[slot] = 0

    @abstractmethod
    def rows_for(self, rooms: Mapping[int, int]) -> int:
        """How many rows are needed, for all slots together, where slots with so much room are open and no others."""

    @abstractmethod
    def stage_prompts(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Announce a pass over prompts, which writes rows behind those of each of `slots`, which are equally long.

        Keys have shape `(len(slots), kv_heads, longest, head_dim)`. What is padding among them is never read.

        Args:
            slots: which.
            counts: how many rows of each are no padding.
        """

    @abstractmethod
    def make_room_for(self, counts: Sequence[int]) -> None:
        """Let there be room for the next `counts[b]` rows of each sequence `b`; nothing is lost."""

    def next_rows(self, counts: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Where the next `counts[b]` rows of each sequence `b` go: slots and rows there, in their order, int64."""
        starts = np.array(self.lengths, dtype=np.int64) + np.array(self.staged, dtype=np.int64)
        slots = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum([0, *counts[:-1]])
        return slots, np.arange(len(slots)) + (starts - firsts)[slots]

    def staged_now(self, counts: Sequence[int]) -> None:
        """A pass over trees is over: its `counts[b]` rows are part of the tree of sequence `b`."""
        self.passes += 1
        self.staged = [staged + count for staged, count in zip(self.staged, counts, strict=True)]

    def restage(self, counts: Mapping[int, int], passes: int) -> None:
        """Count rows of slots as staged again that a pass has staged, and that were given up after it.

        Args:
            counts: by slot how many.
            passes: what `passes` was after that pass.

        Raises:
            RuntimeError: if another pass has been run since, which may have written to them.
        """
        if counts and passes != self.passes:
            raise RuntimeError("another pass over trees has been run since; its rows may be where these were")
        for slot, count in counts.items():
            self.staged[slot] = count

    @property
    def _keeps(self) -> bool:
        """Whether anything is kept for any slot."""
        return any(self.lengths) or any(self.staged)

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write a pass's rows, as a model's attention layer asks for it.

        Args:
            keys: of the shape that the pass was announced with.
            values: the same shape but for its own head size.
            layer_idx: the model's own number of the layer.

        Returns:
            For a pass over trees the whole buffers; for prompts the rows of their sequences, up to their ends, shape
            `(sequences, kv_heads, end, head_dim)`.
        """
        own_keys, own_values = self.layer(layer_idx, keys, values)
        found = self._writes(own_keys, keys), self._writes(own_values, values)
        self._latest = ref(found[0])
        return found

    def gave(self, keys: Tensor) -> bool:
        """Whether the latest `update` returned these keys."""
        return self._latest is not None and self._latest() is keys

    @abstractmethod
    def layer(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The buffers of a layer, made now if it has none yet.

        Args:
            layer_idx: the model's own number of the layer.
            keys: rows of keys, as in `update`, or others of their type, heads and size.
            values: likewise.
        """

    def _layer(self, layer_idx: int, keys: Tensor, values: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
        """As `layer`, with buffers of so many slots, or pages, of so many rows."""
        if layer_idx not in self._keys:
            own = [of.new_empty((first, of.shape[1], rows, of.shape[3])) for of in (keys, values)]
            self._keys[layer_idx], self._values[layer_idx] = own  # both, or none where memory is too short
            self._row_bytes[layer_idx] = sum(of.shape[1] * of.shape[3] * of.itemsize for of in own)
        return self._keys[layer_idx], self._values[layer_idx]

    def buffers(self) -> list[Tensor]:
        """The keys of all layers, then their values. They stay the same for as long as `reallocations` does."""
        return [*self._keys.values(), *self._values.values()]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed rows of the longest sequence; models ask when they are not told positions."""
        return max(self.lengths, default=0)

    def committed(self, counts: Mapping[int, int]) -> None:
        """Note that the first `counts[slot]` rows behind a prefix belong to it now, and forget the others."""
        for slot, count in counts.items():
            self.lengths[slot] += count
            self.staged[slot] = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all layers that have ever written; 0 before the first pass."""
        return sum(self._row_bytes.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers())


class TreeCache(KeyValueCache):
    """Keys and values of which each sequence has its rows in one piece, and every slot as many as the others.

    Each layer's buffers have shape `(slots, kv_heads, capacity, head_dim)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._needed = (0, 0)  # most slots and rows since all were closed
        self._slots = 0  # of the buffers
        self._capacity = 0

    def open(self, slot: int, room: int) -> None:
        """As `KeyValueCache.open`.

        Buffers in which nothing is kept are given up where they are too small; and where they were much too large for
        all that came between the last two times that every slot was closed.
        """
        check_slot(slot)
        self.close(slot)
        if not self._rooms:
            slots, rows = self._needed
            if self._slots > 2 * slots or self._capacity > 4 * rows:
                self._give_up()
            self._needed = (0, 0)
        self._needed = max(self._needed[0], slot + 1), max(self._needed[1], room)
        self._rooms[slot] = room
        if room > self._capacity and not self._keeps:
            self._give_up()
        self._reach(slot)

    @torch.inference_mode()  # as passes, in which buffers are made
    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        self.check_open([source])
        length = min(length, self.lengths[source])
        if slot != source:
            self.open(slot, room)
            self.make_room(length)
            for buffer in self.buffers():
                buffer[slot, :, :length] = buffer[source, :, :length]
        self._rooms[slot] = room
        self._needed = max(self._needed[0], slot + 1), max(self._needed[1], room)
        self.lengths[slot], self.staged[slot] = length, 0
        return length

    def _give_up(self) -> None:
        """Have no buffers, and no slots behind the last one that is open."""
        self.reallocations += 1  # first: somebody may interrupt what follows
        self._slots = self._capacity = 0
        self.lengths = [0] * (max(self._rooms, default=-1) + 1)
        self.staged = [0] * len(self.lengths)
        used_here(*self.buffers())
        self._keys.clear()
        self._values.clear()

    def rows_for(self, rooms: Mapping[int, int]) -> int:
        return rows_of_longest(rooms)

    def stage(self, counts: Sequence[int]) -> None:
        """Announce a pass over trees, which writes `counts[b]` rows behind those of sequence `b`.

        The keys of all sequences come one after another, as the queries do: shape `(1, kv_heads, rows, head_dim)`.
        """
        self.make_room_for(counts)
        starts = [length + staged for length, staged in zip(self.lengths, self.staged, strict=True)]
        writing = [slot for slot, count in enumerate(counts) if count]
        if len(writing) == 1:
            (slot,) = writing
            self._writes = partial(_write_run, slot, starts[slot], counts[slot])
        else:
            slots, rows = self.next_rows(counts)
            self._writes = Scattered(torch.from_numpy(slots), torch.from_numpy(rows))

    def stage_by(self, write: "Write") -> None:
        """Announce a pass whose rows somebody else writes.

        Args:
            write: is called with each buffer and its new rows, and returns what the attention reads.
        """
        self._writes = write

    def stage_prompts(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        start, count = self.lengths[slots[0]], max(counts)
        self.make_room(start + count)
        self._writes = _Block(list(slots), start, count)

    def make_room_for(self, counts: Sequence[int]) -> None:
        self.make_room(max([sum(rows) for rows in zip(self.lengths, self.staged, counts, strict=True)], default=0))

    def make_room(self, capacity: int) -> None:
        """Let each slot have at least `capacity` rows, committed and staged together; nothing is lost."""
        asked = max([capacity, *self._rooms.values()])
        self._needed = self._needed[0], max(self._needed[1], asked)
        slots = len(self.lengths)
        if asked <= self._capacity and slots <= self._slots:
            return
        self.reallocations += 1  # first: memory may be too short for some buffers, or somebody interrupt this
        if not self._keeps:
            self._capacity = 0
            used_here(*self.buffers())
            self._keys.clear()
            self._values.clear()
        elif capacity > self._capacity:  # a text is longer than was thought: do not come back soon
            asked = max(asked, self._capacity + self._capacity // 2)
        counts = [length + staged for length, staged in zip(self.lengths, self.staged, strict=True)]
        rows = max(asked, *counts)  # not as many as a longer text has had that is over: each slot would have them
        kept = [(slot, count) for slot, count in enumerate(counts) if count]
        for buffers in (self._keys, self._values):
            for layer, old in buffers.items():
                new = old.new_empty((slots, old.shape[1], rows, old.shape[3]))
                for slot, count in kept:  # memory that nobody has written to costs nothing until it is touched
                    new[slot, :, :count] = old[slot, :, :count]
                used_here(old)
                buffers[layer] = new
        self._slots, self._capacity = slots, rows

    def layer(self, layer_idx: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._layer(layer_idx, keys, values, self._slots, self._capacity)

    def place_of(self, buffer: Tensor) -> tuple[int, int]:
        """Which layer a buffer belongs to, and whether it has its keys (0) or its values (1).

        Raises:
            KeyError: if it is none of this cache.
        """
        for which, buffers in enumerate((self._keys, self._values)):
            for layer, own in buffers.items():
                if own is buffer:
                    return layer, which
        raise KeyError("this is no buffer of the cache")

    @property
    def capacity(self) -> int:
        """Rows of each sequence in the buffers."""
        return self._capacity

    def commit(self, paths: Mapping[int, IntArray], move: Callable[[int, int, IntArray], None] | None = None) -> None:
        """Move the tree rows `paths[slot]`, ascending, to the end of the slot's prefix and forget its others.

        Only rows that are not where they belong already are moved.

        Args:
            paths: by slot.
            move: moves the rows of a slot, from a row on, along a path, in all buffers; None does it by PyTorch.
        """
        for slot, path in paths.items():
            start = self.lengths[slot]
            stay = _in_place(path.tolist())
            if stay < len(path) and move is not None:
                move(slot, start, path)
            elif stay < len(path):
                self._move(slot, start, path, stay)
        self.committed({slot: len(path) for slot, path in paths.items()})

    @torch.inference_mode()  # as passes, in which buffers are made
    def _move(self, slot: int, start: int, path: IntArray, stay: int) -> None:
        source = torch.as_tensor(path[stay:] + start)
        target = slice(start + stay, start + len(path))
        for buffer in self.buffers():
            # the right side gathers into a new tensor before anything is written
            buffer[slot, :, target] = buffer[slot].index_select(1, source.to(buffer.device))


def check_slot(slot: int) -> None:
    """Make sure that a slot is a number of one.

    Raises:
        ValueError: if it is no whole number of at least 0.
    """
    if not is_whole(slot) or slot < 0:
        raise ValueError(f"the slot is {slot!r}; it must be a whole number and at least 0")


def _in_place(path: list[int]) -> int:
    """How many nodes at the beginning of a path are where they belong."""
    return next((place for place, node in enumerate(path) if node != place), len(path))


Write = Callable[[Tensor, Tensor], Tensor]
"""`write(buffer, new) -> what the attention reads`."""


def _nowhere(buffer: Tensor, new: Tensor) -> Tensor:
    raise RuntimeError("no pass was announced to the cache")


def _write_run(slot: int, start: int, count: int, buffer: Tensor, new: Tensor) -> Tensor:
    buffer[slot].narrow(1, start, count).copy_(new[0])
    return buffer


class _Block:
    """Writes the same rows of several sequences."""

    def __init__(self, slots: list[int], start: int, count: int) -> None:
        self._slots = slots
        self._start = start
        self._count = count
        self._at: Tensor | None = None

    def __call__(self, buffer: Tensor, new: Tensor) -> Tensor:
        start, end = self._start, self._start + self._count
        if len(self._slots) == 1:
            own = buffer.narrow(0, self._slots[0], 1)
            own.narrow(2, start, self._count).copy_(new)
            return own.narrow(2, 0, end)
        if self._at is None or self._at.device != buffer.device:  # once for all layers of a device
            self._at = torch.tensor(self._slots, device=buffer.device)
        buffer[self._at, :, start:end] = new
        return buffer[self._at, :, :end] if start else new


class Scattered:
    """Writes each row to a place of its own; on the device of what is written.

    Args:
        slots: the slot, or the page, of each row of a pass over trees, shape `(rows,)`, int64; what it holds is read
            when a layer writes, and again in each replay of a captured graph.
        rows: the row there, likewise.
    """

    def __init__(self, slots: Tensor, rows: Tensor) -> None:
        self._slots = slots
        self._rows = rows

    def __call__(self, buffer: Tensor, new: Tensor) -> Tensor:
        slots, rows = self.places(buffer.device)
        buffer[slots, :, rows] = new[0].transpose(0, 1)  # (rows, kv_heads, head_dim)
        return buffer

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The slots and the rows there, on a device."""
        if self._rows.device != device:  # once for all layers of a device
            self._slots, self._rows = self._slots.to(device), self._rows.to(device)
        return self._slots, self._rows
