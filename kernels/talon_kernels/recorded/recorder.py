"""Writes passes down and walks them; see `PassRecorder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from talon_core.runtime.cache import TreeCache
from talon_core.runtime.executor import Numbers, TreeView
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.passes import Pass
from talon_core.runtime.recording import PassRecorder, RecordedPass
from talon_core.tree import IntArray
from talon_kernels.best_tokens.native import best_tokens_native
from talon_kernels.commit_path.native import NativeMover
from talon_kernels.narrow import changes
from talon_kernels.native import Library
from talon_kernels.recorded.plan import arrange, moved, set_waits
from talon_kernels.recorded.screening import screen_heads
from talon_kernels.recorded.steps import Op, Operand, packed
from talon_kernels.recorded.tape import CannotRecord, Found, Tape, View
from talon_kernels.tree_attention.layout import native_layout

T = TypeVar("T")

MOST_ROWS = ((61, 59, 53, 47, 43), (251, 241, 239, 233, 229))
"""Rows of the tapes, by kind of rows: primes, so that no width of a layer is a multiple of one. A tape for few nodes
first; one that is too short is written again."""

MOST_ANSWERS = 1024
"""Numbers of rows for which it is kept where the answer stands."""


class NativeRecorder(PassRecorder):
    """Records passes for the walker in C.

    Args:
        library: walks.
    """

    most = MOST_ROWS[-1][-1]

    def __init__(self, library: Library) -> None:
        self._library = library

    def record(
        self, work: Callable[[TreeView], T], cache: TreeCache, queries: int, more: Mapping[str, Numbers]
    ) -> RecordedPass[T]:
        own = [name for name, numbers in more.items() if not numbers.one_each]
        for most in MOST_ROWS:
            if len(own) < len(most) and queries <= most[-1]:
                return _Walked(self._library, work, cache, [*more], own, most)
        raise CannotRecord(f"a pass over {queries} nodes is too large to be recorded")

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[int, int, IntArray], None]:
        return NativeMover(self._library, buffers)

    def best_numbers(self, scores: Tensor, width: int) -> Tensor:
        return best_tokens_native(self._library, scores.contiguous(), width)


class _NotedPass(Pass):
    """Tells the tape of attention; the caches are told apart by their memory."""

    def __init__(self, tape: Tape, cache: TreeCache) -> None:
        super().__init__()
        self._tape = tape
        self._cache = cache
        self._layers: dict[int, int] = {}
        self.like: dict[int, list[Tensor]] = {}  # by layer, rows of keys and of values

    def write(self, buffer: Tensor, new: Tensor) -> Tensor:
        """What the cache does with a layer's keys or values while the tape is written: nothing."""
        layer, which = self._cache.place_of(buffer)
        self._layers[buffer.data_ptr()] = layer
        self.like.setdefault(layer, []).append(new)
        self._tape.write(layer, which, buffer, new)
        return buffer

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        layer = self._layers.get(key.data_ptr())
        if layer is None:
            raise CannotRecord("attention reads other keys than those of the cache")
        return self._tape.attend(layer, query[0], value.shape[3], key.shape[1], **options)[None]


def filled(value: Any, real: Callable[[Any], Any]) -> Any:
    """A value with `real` of all that stands in its lists, tuples and mappings."""
    if type(value) in (tuple, list):
        return type(value)([filled(each, real) for each in value])
    if type(value) is dict:
        return {key: filled(each, real) for key, each in value.items()}
    return real(value)


class _Walked(RecordedPass[T]):
    """One pass, walked by C.

    Args:
        library: walks.
        work: the pass.
        cache: keys and values.
        names: further numbers of the pass.
        own: those of them that are not one for each query.
        most: rows of the tape, for the queries and for each of these.
    """

    def __init__(
        self,
        library: Library,
        work: Callable[[TreeView], T],
        cache: TreeCache,
        names: list[str],
        own: list[str],
        most: tuple[int, ...],
    ) -> None:
        self._library = library
        self._cache = cache
        self._own = own
        self._most = most[: 1 + len(own)]
        self._state = changes()
        ids, positions = torch.zeros(most[0], dtype=torch.int64), torch.arange(most[0])
        counts = {name: own.index(name) + 1 if name in own else 0 for name in names}
        more = {name: torch.zeros(most[count], dtype=torch.int64) for name, count in counts.items()}
        tape = self._tape = Tape(ids, positions, more, counts, self._most, library.lanes)
        noted = _NotedPass(tape, cache)
        cache.stage_by(noted.write)
        with torch.inference_mode(), tape:
            made = work(TreeView(ids, positions, noted, more))
            self._made = tree_map(tape.standing_for, made)
        self._like = {layer: [torch.empty_like(own[:, :, :1]) for own in both] for layer, both in noted.like.items()}
        tape.let_go()
        self._arrange()
        self._tables: dict[int, Tensor] = {}
        self._known = 0  # positions whose angles are in the tables
        self._reallocations = -1
        self._counts = np.zeros(1 + len(own), dtype=np.int64)
        self._at = (
            self._steps.ctypes.data,
            len(self._steps),
            self._memory.ctypes.data,
            self._counts.ctypes.data,
        )

    def _arrange(self) -> None:
        tape = self._tape
        views: list[View] = []

        def note(value: Any) -> Any:
            if isinstance(value, View):
                views.append(value)
            return value

        tree_map(note, ([(one.arguments, one.keywords) for one in tape.tail], self._made))
        lasting = {view.piece for view in views}
        screen_heads(tape, lasting, self._library)
        phases = set_waits(tape.steps)
        places, size = arrange(tape.steps, phases, tape.made, lasting)
        arena = tape.pieces
        self._places = places
        self._arena = torch.zeros(size + 1, dtype=torch.float32)
        self._steps = packed([moved(step, arena, places) for step in tape.steps])
        self._memory = np.zeros(arena + 1, dtype=np.uint64)
        self._memory[arena] = self._arena.data_ptr()
        for piece, address in tape.addresses.items():
            self._memory[piece] = address
        self._inputs = {name: piece for piece, name in tape.inputs.items()}
        self._whole = self._arena[: size // 2 * 2].view(torch.int64)
        self._known_answers: dict[tuple[int, ...], Any] = {}

    def fits(self, queries: int, more: Mapping[str, Numbers]) -> bool:
        # of further numbers there are at most as many as queries
        return self._state == changes() and queries <= self._most[-1]

    def run(self, inputs: PassInputs, more: Mapping[str, Numbers]) -> T:
        layout = native_layout(inputs.layout)
        self._bind(inputs, layout.used)
        counts = (len(inputs.ids), *[len(more[name].values) for name in self._own])
        held = [np.ascontiguousarray(one.values, dtype=np.int64) for one in more.values()]
        given = dict(zip(more, held, strict=True), ids=inputs.ids, positions=inputs.positions)
        for name, piece in self._inputs.items():
            self._memory[piece] = given[name].ctypes.data
        self._counts[:] = counts
        try:
            self._library.walk(
                *self._at,
                layout.prefix,
                layout.counts,
                layout.first,
                layout.parents,
                len(inputs.counts),
                torch.get_num_threads(),
            )
        except LookupError as error:
            raise CannotRecord(str(error)) from error
        made: T = self._answer(counts)
        return made

    def _answer(self, counts: tuple[int, ...]) -> Any:
        """What the pass returns. Of the same counts that is the same memory, unless PyTorch has the last word."""
        if counts in self._known_answers:
            return self._known_answers[counts]
        found: dict[int, Tensor] = {}

        def real(value: Any) -> Any:
            if isinstance(value, Found):
                return found[value.number]
            if isinstance(value, View):
                rows, arena = counts[value.count], self._whole if value.whole else self._arena
                sizes = [-size * rows if size < 0 else size for size in value.sizes]
                begin = self._places[value.piece] // (2 if value.whole else 1)
                return arena.as_strided(sizes, value.strides, value.offset + begin)
            return value

        for one in self._tape.tail:
            out = one.function(*filled(one.arguments, real), **filled(one.keywords, real))
            found.update(zip(one.out, out if isinstance(out, tuple | list) else (out,), strict=True))
        made = filled(self._made, real)
        if not self._tape.tail and len(self._known_answers) < MOST_ANSWERS:
            self._known_answers[counts] = made
        return made

    def _bind(self, inputs: PassInputs, used: int) -> None:
        """Let the steps work on the cache's present buffers, and have the angles of all positions."""
        if self._reallocations != self._cache.reallocations:
            for step, own in zip(self._tape.steps, self._steps, strict=True):
                if step.layer is None:
                    continue
                keys, values = self._cache.layer(step.layer, *self._like[step.layer])
                if step.op is Op.ATTEND:
                    own["strides"][2, :3] = keys.stride()[:3]
                    own["sizes"][:3] = values.stride()[:3]
                else:
                    to = values if step.operands[0] == Operand(self._tape.caches[step.layer, 1]) else keys
                    own["strides"][0, :3] = to.stride()[:3]
            for (layer, which), piece in self._tape.caches.items():
                self._memory[piece] = self._cache.layer(layer, *self._like[layer])[which].data_ptr()
            self._reallocations = self._cache.reallocations
        if used > self._known:  # there are no more positions than rows
            positions = int(inputs.positions.max()) + 1
            if positions <= self._known:
                return
            try:
                self._make_tables(max(positions, self._cache.capacity))
            except CannotRecord:  # the model may know fewer positions than there is room for
                self._make_tables(positions)

    def _make_tables(self, positions: int) -> None:
        """Compute what follows from positions alone, for all of them; the tape's operations again, some at a time."""
        rows = self._most[0]
        wanted = max(positions, rows)
        starts = [*range(0, wanted - rows, rows), wanted - rows]
        tables = {
            piece: torch.empty((wanted, base.numel() // rows), dtype=torch.float32)
            for piece, base in self._tape.positional.items()
        }
        with torch.inference_mode():
            for start in starts:
                now = {id(self._tape.positions): torch.arange(start, start + rows)}

                def present(value: Any, now: dict[int, Tensor] = now) -> Any:
                    return now.get(id(value), value) if isinstance(value, Tensor) else value

                for function, arguments, keywords, made in self._tape.angles:
                    try:
                        out = function(*tree_map(present, arguments), **tree_map(present, keywords))
                    except IndexError as error:  # a table of learned positions ends
                        raise CannotRecord(f"positions from {start} to {start + rows} are too far: {error}") from error
                    now.update(zip(map(id, made), [out] if isinstance(out, Tensor) else out, strict=True))
                for piece, base in self._tape.positional.items():
                    tables[piece][start : start + rows] = present(base).reshape(rows, -1)
        for piece, table in tables.items():
            self._tables[piece] = table
            self._memory[piece] = table.data_ptr()
        self._known = wanted
