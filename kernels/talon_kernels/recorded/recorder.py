"""Writes passes down and walks them; see `PassRecorder`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from talon_core.runtime.cache import TreeCache
from talon_core.runtime.executor import Numbers, TreeView
from talon_core.runtime.host_draws import DrawnAhead, Warp, warps_of
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.passes import Pass
from talon_core.runtime.recording import ChainRun, FurtherPasses, PassRecorder, RanChains, RecordedPass
from talon_core.target import NO_TOKEN, NOWHERE, Behind, StillWanted
from talon_core.tree import IntArray
from talon_core.tree_arrays import ints
from talon_kernels.best_tokens.native import best_tokens_native
from talon_kernels.commit_path.native import NativeMover
from talon_kernels.drawn_tokens.native import drawn_tokens_native
from talon_kernels.narrow import changes
from talon_kernels.native import Library
from talon_kernels.recorded.chains import run_chains
from talon_kernels.recorded.plan import arrange, moved, set_waits
from talon_kernels.recorded.screening import Screens
from talon_kernels.recorded.steps import Op, Operand, Piece, Step, packed
from talon_kernels.recorded.tape import CannotRecord, Found, Tape, View
from talon_kernels.recorded.wanted import walk_on
from talon_kernels.tree_attention.layout import NativeLayout

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
                return Walked(self._library, work, cache, [*more], own, most)
        raise CannotRecord(f"a pass over {queries} nodes is too large to be recorded")

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[int, int, IntArray], None]:
        return NativeMover(self._library, buffers)

    def run_chains(self, run: ChainRun) -> RanChains | None:
        return run_chains(self._library, run)

    def draw_token(self, scores: Tensor, warp: Warp, number: float) -> int:
        row = scores[None].contiguous()
        return int(drawn_tokens_native(self._library, row, warps_of([warp]), np.array([number])))

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


class _Program:
    """Steps that C walks, and the memory that they work on.

    Args:
        tape: where they are from.
        steps: they.
        lasting: pieces of what they make that are read behind them.
        more: further tensors that they read, by piece; they last as long as this.

    Attributes:
        steps: likewise.
        more: likewise.
        packed: as C reads them.
        memory: addresses by piece.
        at: where C finds the steps, how many there are, and where it finds the addresses.
        answers: what a pass returns, by its counts; where PyTorch has no last word that is the same memory.
        reallocations: of the cache, when its buffers were bound.
        positions: of the tables with what follows from them, when these were bound.
    """

    def __init__(self, tape: Tape, steps: list[Step], lasting: Collection[Piece], more: Mapping[Piece, Tensor]) -> None:
        self.steps = steps
        self.more = more
        phases = set_waits(steps)
        self._places, size = arrange(steps, phases, tape.made, lasting)
        arena = tape.pieces
        self._arena = torch.zeros(size + 1, dtype=torch.float32)
        self._whole = self._arena[: size // 2 * 2].view(torch.int64)
        self.packed = packed([moved(step, arena, self._places) for step in steps])
        self.memory = np.zeros(arena + 1, dtype=np.uint64)
        self.memory[arena] = self._arena.data_ptr()
        for piece, address in tape.addresses.items():
            self.memory[piece] = address
        for piece, tensor in more.items():
            self.memory[piece] = tensor.data_ptr()
        self.at = self.packed.ctypes.data, len(self.packed), self.memory.ctypes.data
        self.answers: dict[tuple[int, ...], Any] = {}
        self.reallocations = -1
        self.positions = 0

    def tensor(self, view: View, rows: int) -> Tensor:
        """What stands for a tensor of the pass, with so many rows."""
        arena = self._whole if view.whole else self._arena
        sizes = [-size * rows if size < 0 else size for size in view.sizes]
        begin = self._places[view.piece] // (2 if view.whole else 1)
        return arena.as_strided(sizes, view.strides, view.offset + begin)


class _Drawn(ctypes.Structure):
    """As `Drawn` in `pass.c`."""

    _fields_: ClassVar = [
        *(("scores", ctypes.c_void_p), ("n", ctypes.c_int64)),
        *((name, ctypes.c_void_p) for name in ("warps", "numbers", "tokens")),
    ]


class _Further(FurtherPasses):
    """Where passes that go on by themselves leave what is kept of each.

    Args:
        program: they.
        made: what is kept of what a pass returns, first the tokens that the next one reads, or the scores that these
            are drawn from, which are not kept.
        rows: of a pass.
        passes: how many at most.
        draws: how they are drawn; None where they are not.

    Attributes:
        in_rows: whether all of it can be kept as it lies in memory; nothing else here is of use otherwise.
        best: where the tokens are, behind a pass.
        drawn: as C takes it: where it stands how tokens are drawn; 0 where they are not.
        at: as C takes it: where the results are, how many float32 numbers each has, how many there are, and where they
            are kept.
    """

    def __init__(
        self, program: _Program, made: tuple[Any, ...], rows: int, passes: int, draws: DrawnAhead | None
    ) -> None:
        self._views = [view for view in tree_leaves(made if draws is None else made[1:]) if isinstance(view, View)]
        tensors = [program.tensor(view, rows) for view in self._views]
        first = program.tensor(made[0], rows)
        self.in_rows = all(one.is_contiguous() and one.nbytes % 8 == 0 for one in tensors) and first.is_contiguous()
        self._draws, self.best, self.drawn = draws, first.data_ptr(), 0
        if draws is not None:
            self._tokens = np.zeros((passes, rows), dtype=np.int64)
            self._warps = warps_of(draws.warps)
            numbers = self._warps.ctypes.data, draws.numbers.ctypes.data, self._tokens.ctypes.data
            self._fields = _Drawn(self.best, first.shape[1], *numbers)
            self.best, self.drawn = 0, ctypes.addressof(self._fields)
        self._rest, self._shapes = made[1:], [one.shape for one in tensors]
        self._starts = np.array([one.data_ptr() for one in tensors], dtype=np.uint64)
        self._sizes = np.array([one.nbytes // 4 for one in tensors])
        self._kept = torch.empty((passes if self.in_rows else 0, int(self._sizes.sum())), dtype=torch.float32)
        self.at = self._starts.ctypes.data, self._sizes.ctypes.data, len(tensors), self._kept.data_ptr()
        if draws is None and self.in_rows:
            self._tokens = self._kept.numpy().view(np.int64)[:, : self._sizes.item(0) // 2]

    def done(self, passes: int) -> _Further:
        """The same, when so many passes were done."""
        self.tokens: list[list[int]] = self._tokens[:passes].tolist()
        return self

    def of_one(self, first: int, last: int) -> list[int]:
        """The tokens that some passes have found after the one text that is in them; the last is none of these."""
        found: list[int] = self._tokens[first:last, 0].tolist()
        return found

    def rest(self, which: int) -> tuple[Any, ...]:
        made = self._made[which]
        found: tuple[Any, ...] = filled(self._rest, lambda value: made[value] if isinstance(value, View) else value)
        return found

    @cached_property
    def _made(self) -> list[dict[View, Tensor]]:
        """What was made in each pass, taken apart for all of them at once, as making a tensor takes long."""
        passes = len(self.tokens)
        each: list[dict[View, Tensor]] = [{} for _ in range(passes)]
        wanted = {one for one in tree_leaves(self._rest) if isinstance(one, View)}
        if not wanted:
            return each
        pieces = torch.split(self._kept[:passes], self._sizes.tolist(), dim=1)
        for view, piece, shape in zip(self._views, pieces, self._shapes, strict=True):
            if view not in wanted:  # the tokens
                continue
            for made, one in zip(each, piece.view(torch.int64) if view.whole else piece, strict=True):
                made[view] = one.view(shape)
        return each


class Walked(RecordedPass[T]):
    """One pass, walked by C.

    Args:
        library: walks.
        work: the pass.
        cache: keys and values.
        names: further numbers of the pass.
        own: those of them that are not one for each query.
        most: rows of the tape, for the queries and for each of these.

    Attributes:
        made: what the pass returns, with views in the place of tensors.
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
            self.made = tree_map(tape.standing_for, made)
        self._like = {layer: [torch.empty_like(own[:, :, :1]) for own in both] for layer, both in noted.like.items()}
        tape.let_go()
        self._tailed = _pieces_in([(one.arguments, one.keywords) for one in tape.tail])
        self._lasting = self._tailed | _pieces_in(self.made)
        sizes = {piece: most[counts.get(name, 0)] for piece, name in tape.inputs.items()}
        self._given = {piece: torch.zeros(size, dtype=torch.int64) for piece, size in sizes.items()}
        self._inputs = {name: self._given[piece].numpy() for piece, name in tape.inputs.items()}
        self._all = _Program(tape, tape.steps, self._lasting, self._given)
        self._choosing: _Program | None = None
        self._screens = Screens()
        self._tables: dict[int, Tensor] = {}
        self._known = 0  # positions whose angles are in the tables
        self._counts = np.zeros(1 + len(own), dtype=np.int64)
        self._counts_at = self._counts.ctypes.data

    def fits(self, queries: int, more: Mapping[str, Numbers]) -> bool:
        # of further numbers there are at most as many as queries
        return self._state == changes() and queries <= self._most[-1]

    def _program(self, choosing: bool) -> _Program:
        """The steps of a pass, or of one of which the largest of some numbers alone are wanted."""
        if not choosing:
            return self._all
        if self._choosing is None or self._screens.are_old():
            steps = self._screens.put_into(self._tape, self._tailed, self._library)
            read = self._given | self._screens.held
            whole = steps is self._tape.steps
            self._choosing = self._all if whole else _Program(self._tape, steps, self._lasting, read)
        return self._choosing

    def run(self, inputs: PassInputs, more: Mapping[str, Numbers], choosing: bool = False) -> T:
        program, layout = self._ready(inputs, more, choosing, 0)
        counts = tuple(self._counts.tolist())
        where = self._counts_at, layout.numbers.ctypes.data, len(inputs.counts)
        try:
            self._library.walk(*program.at, *where, torch.get_num_threads())
        except LookupError as error:
            raise CannotRecord(str(error)) from error
        made: T = self._answer(program, counts)
        return made

    def run_on(
        self,
        inputs: PassInputs,
        passes: int,
        ends: Collection[int],
        chosen: Callable[[T], Any],
        draws: DrawnAhead | None = None,
        wanted: StillWanted | None = None,
        behind: Behind | None = None,
    ) -> FurtherPasses | None:
        if self._tape.tail or not {"ids"} <= self._inputs.keys() <= {"ids", "positions"}:
            return None
        made = chosen(self.made)
        if not isinstance(made[0], View):
            return None
        program, layout = self._ready(inputs, {}, draws is None, passes - 1)
        found = _Further(program, made, len(inputs.ids), passes, draws)
        if not found.in_rows:
            return None
        ids, positions = self._inputs["ids"], self._inputs.get("positions", inputs.positions.copy())
        ending = {NO_TOKEN, *(end for end in ends if 0 <= end < 2**63)}  # nothing else comes out
        asked = NOWHERE if behind is None else behind
        last = np.concatenate([ints([*ending]), asked.tokens])  # as C looks for them
        done = np.zeros(1, dtype=np.int64)
        where = self._counts_at, layout.numbers.ctypes.data, len(inputs.counts)
        own = ids.ctypes.data, positions.ctypes.data, found.best, last.ctypes.data, len(last)
        to = asked.pairs.ctypes.data, len(asked.pairs), *found.at, done.ctypes.data, found.drawn

        def walk(count: int) -> int:
            self._library.walk_on(*program.at, *where, torch.get_num_threads(), count, *own, *to)
            return done.item()

        def brought(before: int, now: int) -> list[int]:
            tokens = found.of_one(before, now)
            return tokens if ending.isdisjoint(tokens) else []

        walk_on(walk, brought, passes, wanted, behind is None)
        return found.done(done.item())

    @property
    def ends_in_torch(self) -> bool:
        """Whether PyTorch has the last word on what the pass returns."""
        return bool(self._tape.tail)

    def ready(
        self, inputs: PassInputs, more: Mapping[str, Numbers], choosing: bool, rows: int
    ) -> tuple[_Program, NativeLayout, NDArray[np.int64], Mapping[str, NDArray[np.int64]]]:
        """What C will walk if the pass is one of several that write no further than to a row of the cache.

        Args:
            inputs: as for `run`, and so are the next two.
            more: likewise.
            choosing: likewise.
            rows: committed and staged together.

        Returns:
            The program, the layout of the first pass, where its counts are, and where it reads its inputs, by name.
        """
        behind = int(inputs.positions.max()) + 1  # a text has no more positions than rows; others may be longer
        program, layout = self._ready(inputs, more, choosing, max(rows - behind, 0))
        return program, layout, self._counts, self._inputs

    def _ready(
        self, inputs: PassInputs, more: Mapping[str, Numbers], choosing: bool, further: int
    ) -> tuple[_Program, NativeLayout]:
        """What C will walk, with all that it reads in its place.

        Args:
            inputs: as for `run`, and so are the next two.
            more: likewise.
            choosing: likewise.
            further: rows that passes behind this one write behind its own.
        """
        program = self._program(choosing)
        layout = NativeLayout.of(inputs.layout)
        self._bind(program, inputs, layout.used, further)
        given = {name: one.values for name, one in more.items()}
        given.update(ids=inputs.ids, positions=inputs.positions)
        for name, held in self._inputs.items():  # copied to where the steps always read it
            held[: len(given[name])] = given[name]
        self._counts[:] = len(inputs.ids), *[len(more[name].values) for name in self._own]
        return program, layout

    def _answer(self, program: _Program, counts: tuple[int, ...]) -> Any:
        """What the pass returns. Of the same counts that is the same memory, unless PyTorch has the last word."""
        if counts in program.answers:
            return program.answers[counts]
        found: dict[int, Tensor] = {}

        def real(value: Any) -> Any:
            if isinstance(value, Found):
                return found[value.number]
            return program.tensor(value, counts[value.count]) if isinstance(value, View) else value

        for one in self._tape.tail:
            out = one.function(*filled(one.arguments, real), **filled(one.keywords, real))
            found.update(zip(one.out, out if isinstance(out, tuple | list) else (out,), strict=True))
        made = filled(self.made, real)
        if not self._tape.tail and len(program.answers) < MOST_ANSWERS:
            program.answers[counts] = made
        return made

    def _bind(self, program: _Program, inputs: PassInputs, used: int, further: int) -> None:
        """Let the steps work on the cache's present buffers, and have the angles of all positions."""
        if program.reallocations != self._cache.reallocations:
            for step, own in zip(program.steps, program.packed, strict=True):
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
                program.memory[piece] = self._cache.layer(layer, *self._like[layer])[which].data_ptr()
            program.reallocations = self._cache.reallocations
        if used + further > self._known:  # there are no more positions than rows
            positions = int(inputs.positions.max()) + 1 + further
            if positions > self._known:
                self._reach(positions)
        if program.positions != self._known:
            for piece, table in self._tables.items():
                program.memory[piece] = table.data_ptr()
            program.positions = self._known

    def _reach(self, positions: int) -> None:
        """Have the angles of so many positions, and of others behind them, so that they are seldom made anew."""
        for more in (2 * self._known, self._known * 5 // 4, self._cache.capacity):
            if more > positions:
                with suppress(CannotRecord):  # the model may know fewer
                    self._make_tables(more)
                    return
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
        self._tables = tables
        self._known = wanted


def _pieces_in(value: Any) -> set[int]:
    """The pieces of memory that a value has views of."""
    found: set[int] = set()

    def note(one: Any) -> Any:
        if isinstance(one, View):
            found.add(one.piece)
        return one

    tree_map(note, value)
    return found
