"""Passes whose every input is in device memory: sent in one copy, recorded once a shape, repeated without Python."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core.attention import AttentionBackend, DeviceBackend, PackedLayout, PackedShape, TooLargeError, TreeLayout
from talon_core.runtime.cache import bucket
from talon_core.runtime.executor import NOTHING, Executor, HostExecutor, Made, Numbers, TreeView, check_numbers
from talon_core.runtime.inputs import PassInputs
from talon_core.runtime.next_tokens import next_tokens
from talon_core.runtime.pages import PADDING, PAGE_ROWS, PagedCache
from talon_core.runtime.passes import TreePass
from talon_core.runtime.recorded_draws import DRAW_FILL, DrawingForm, DrawingForms, numbers_in, sent_draws
from talon_core.runtime.recording import Recorder, Walk, Walks
from talon_core.runtime.recordings import Recorded, Recordings
from talon_core.runtime.transfers import Outbox, fetched, sent_together, wait_for
from talon_core.target import ALL_WALKED, NOTHING_DRAWN, NodeDraws
from talon_core.tree import IntArray

T = TypeVar("T")

FEWEST_NODES = 64
"""Nodes of a tree that every pass has room for, so that growing trees change no shape."""

PATIENCE = 64
"""Passes over few sequences, or small trees, behind one over many, or a large one, that have room for as many."""

MOST_PREPARED = 512
"""Nodes of all trees together in the largest pass that is recorded before it is wanted. So there are 14 sizes at most,
and what they return takes no more memory than so many rows of logits."""

SPARE_SHARE = 4
"""A cache takes up to one in so many parts of the memory that is free where it need not."""

SPARE_BYTES = 2**28
"""What it takes where nobody knows how much memory is free."""


def node_room(count: int) -> int:
    """For how many nodes of each tree a pass over trees of up to `count` nodes has room: hardly anything follows it."""
    return _of_few(count, FEWEST_NODES, 4)


def _buckets(most: int) -> list[int]:
    """All sizes up to the one that has room for `most`, ascending; where texts end, small ones come in any batch."""
    sizes = [bucket(1)]
    while sizes[-1] < most:
        sizes.append(bucket(sizes[-1] + 1))
    return sizes


def _of_few(count: int, size: int, times: int) -> int:
    """The smallest of some sizes that has room for a count: each is so many times the one before."""
    while size < count:
        size *= times
    return size


class LatestRoom:
    """For how many of something passes have room: as the largest of the latest passes needs.

    Batches that come and go so need few recordings, and small ones that stay are not sent as large ones.

    Args:
        times: each of the sizes, of which the first is 1, is so many times the one before.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._room = 0
        self._smaller = 0  # passes since one that needed it
        self._next = 0  # what the largest of these needed

    def of(self, count: int) -> int:
        """The room of the next pass, which needs so much."""
        needed = _of_few(count, 1, self._times)
        self._smaller, self._next = self._smaller + 1, max(self._next, needed)
        if needed >= self._room or self._smaller > PATIENCE:
            self._room, self._smaller, self._next = self._next, 0, 0
        return self._room


def _spare_bytes(devices: Sequence[torch.device]) -> int:
    """Of the one that has least, as nobody knows beforehand which has how much of a cache."""
    free = [torch.cuda.mem_get_info(device)[0] // SPARE_SHARE for device in devices if device.type == "cuda"]
    return min(free, default=SPARE_BYTES)


@attrs.frozen(eq=False)
class _DevicePass:
    """What was sent for a pass, int32 as kernels read it. The memory is written anew for each pass of the same shape.

    Attributes:
        ids: token ids, shape `(queries,)`; padding is 0.
        positions: shape `(queries,)`.
        layout: who may attend to whom.
        table: the pages of each sequence, shape `(batch, width)`.
        more: what else was sent, each of shape `(queries,)`.
        copied: the layout and the table in memory of another device, in one copy.
    """

    ids: Tensor
    positions: Tensor
    layout: PackedLayout
    table: Tensor
    more: Mapping[str, Tensor]
    copied: Callable[[torch.device], tuple[PackedLayout, Tensor]]


@attrs.frozen(eq=False)
class _Kind(Generic[T]):
    """A kind of pass, of any size.

    Attributes:
        key: tells it apart from others.
        work: does it.
        fill: by the name of further numbers what is padding.
        draws: whether tokens are drawn in it.
    """

    key: Hashable
    work: Callable[[_DevicePass], T]
    fill: Mapping[str, int]
    draws: bool = False


class _Memory:
    """All numbers of a pass, in one piece of memory here and one on the device.

    Args:
        shape: of the layout.
        width: pages of each sequence.
        fill: by the name of further numbers what is padding.
        outbox: makes what sends so many numbers.
    """

    def __init__(
        self, shape: PackedShape, width: int, fill: Mapping[str, int], outbox: Callable[[int], Outbox]
    ) -> None:
        self.shape = shape
        self._fill = {"ids": 0, "positions": 0, "pages": PADDING, "rows": 0, **fill}
        self._width = width
        self._outbox = outbox(shape.size + shape.batch * width + len(self._fill) * shape.queries)
        numbers, there = self._outbox.numbers, self._outbox.there
        self._layout = numbers[: shape.size]
        self._table, parts = self._split(numbers)
        self._parts = dict(zip(self._fill, parts, strict=True))
        table, parts = self._split(there)
        more = dict(zip(self._fill, parts, strict=True))
        ids, positions, self.pages, self.rows = (more.pop(name) for name in ("ids", "positions", "pages", "rows"))
        layout, end = shape.views(there[: shape.size]), shape.size + shape.batch * width
        copied = partial(_copied, there[:end], shape)
        self.on_device = _DevicePass(ids, positions, layout, table, more, copied)

    def _split(self, numbers: Any) -> tuple[Any, list[Any]]:
        end = self.shape.size + self.shape.batch * self._width
        table = numbers[self.shape.size : end].reshape(self.shape.batch, self._width)
        return table, list(numbers[end:].reshape(-1, self.shape.queries))

    def send_nothing(self) -> None:
        """Let it be a pass over nothing, at first."""
        self._table[:] = PADDING
        for name, part in self._parts.items():
            part[:] = self._fill[name]
        self._outbox.send()

    def send(
        self, inputs: PassInputs, layout: TreeLayout, table: NDArray[np.int32], more: Mapping[str, IntArray]
    ) -> None:
        """Let it be a pass over these inputs.

        Args:
            inputs: what is to be run.
            layout: its own, of the sequences that take part.
            table: their pages, shape `(sequences, width)`.
            more: further numbers.
        """
        self._outbox.wait()
        self.shape.write(layout, self._layout)
        self._table[: len(table)] = table
        parts = {"ids": inputs.ids, "positions": inputs.positions, **more}
        for name, part in self._parts.items():
            count = len(parts[name])
            part[:count] = parts[name]
            part[count:] = self._fill[name]
        self._outbox.send()


def _copied(numbers: Tensor, shape: PackedShape, device: torch.device) -> tuple[PackedLayout, Tensor]:
    """A layout and the table behind it, in memory of another device."""
    there = numbers.to(device, non_blocking=True)
    return shape.views(there[: shape.size]), there[shape.size :].reshape(shape.batch, -1)


class DeviceExecutor(Executor):
    """Runs passes whose every input is in device memory.

    Args:
        attention: needs nothing from the host.
        device: where the network is.
        recorder: records passes, each shape once; None runs them as they are.
        outbox: makes what sends so many numbers to the device.
        others: further devices that layers of the network are on. What these read of a pass is copied to each of them;
            such passes cannot be recorded.
    """

    can_walk = True
    can_draw = True

    def __init__(
        self,
        attention: DeviceBackend,
        device: torch.device,
        recorder: Recorder | None = None,
        outbox: Callable[[int, torch.device], Outbox] = Outbox,
        others: Sequence[torch.device] = (),
    ) -> None:
        super().__init__(attention, device, PagedCache(partial(_spare_bytes, (device, *others))))
        self.cache: PagedCache
        self._backend = attention
        self._outbox = outbox
        self._recordings = Recordings(recorder)
        self._forms = DrawingForms()
        self._reallocations = self.cache.reallocations
        self._batch, self._most = LatestRoom(4), LatestRoom(2)
        self._ends: dict[frozenset[int], Tensor] = {}
        self._walked = torch.empty(0)  # places of accepted nodes among those of all trees, shape `(taking, longest)`
        self._movers: tuple[int, Mapping[torch.device, Callable[[Tensor, Tensor, Tensor], None]]] = -1, {}

    @property
    def failure(self) -> str | None:
        return self._recordings.failure

    @property
    def recorded(self) -> int:
        return self._recordings.passes

    @property
    def preparations(self) -> int:
        return self._recordings.tried

    @torch.inference_mode()
    def run(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], T],
        kind: Hashable,
        more: Mapping[str, Numbers] = NOTHING,
    ) -> T:
        check_numbers(inputs, more)
        fill = {name: numbers.padding for name, numbers in more.items()}
        plain = self._plain(work, kind, fill)
        return self._run(inputs, plain, {name: numbers.values for name, numbers in more.items()})

    @torch.inference_mode()
    def walk(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], Made],
        kind: Hashable,
        slots: Collection[int],
        ends: frozenset[int],
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        logits: bool = True,
    ) -> tuple[Made, Walks]:
        self._keep(ends)
        # where nobody walks, no node has a parent: the path is the root alone, which moves nothing
        parents = [np.full(len(own), -1) for own in inputs.layout.parents]
        for slot in slots:
            own = inputs.layout.parents[slot]
            walked = len(own) - unwalked.get(slot, 0)
            parents[slot][:walked] = own[:walked]
        more, starts = {"parents": np.concatenate(parents)}, inputs.layout.starts
        used: Tensor | None = None
        failed: set[int] = set()
        form = self._form(slots, drawn, len(_taking(inputs)))
        if drawn and form is None:
            # what is done with these scores is launched behind the recorded pass
            more.update(sent_draws(starts, drawn))
            made, given = self._run(inputs, self._drawing(work, kind), more)
            followed = next_tokens(made[0], numbers_in(given.more), starts, slots, drawn, unwalked)
            used, failed = followed.numbers, followed.failed
            walks, self._walked = self._follow(followed.tokens, given, ends, followed.within)
        else:
            if form is not None:
                more.update(form.sent(starts, drawn))
            walks, self._walked, made = self._run(inputs, self._walking(work, kind, ends, form), more)
        told = walks if used is None else torch.cat([walks.flatten(), used.int()])
        every = fetched(told).numpy().astype(np.int64).ravel()  # the round's only copy to the host
        found, numbers_of = every[: walks.numel()].reshape(walks.shape), every[walks.numel() :]
        paths = {}
        for row, slot in enumerate(_taking(inputs)):
            if slot in slots and slot not in failed:
                count, token = found[row, :2].tolist()
                tested = slot in drawn and drawn[slot].tests is not None
                paths[slot] = Walk(found[row, 2 : 2 + count], token, int(numbers_of[slot]) if tested else 0)
        self.cache.committed({slot: len(walk.path) for slot, walk in paths.items()})
        return made, paths

    @torch.inference_mode()
    def prepare(
        self,
        slots: Collection[int],
        nodes: int,
        work: Callable[[TreeView], Made],
        kind: Hashable,
        ends: frozenset[int] | None = None,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> None:
        if not self._recordings.active:
            return
        if ends is not None:
            self._keep(ends)

        def wanted() -> _Kind[Any]:
            """The passes to come; asked for anew, as it may have turned out that no tokens are drawn within any."""
            if ends is None:
                return self._plain(work, kind, {})
            form = self._form(slots, drawn, len(slots))
            return self._drawing(work, kind) if drawn and form is None else self._walking(work, kind, ends, form)

        self._make_room([nodes if slot in slots else 0 for slot in range(len(self.cache.lengths))])
        width, batch, most = self.cache.width, self._batch.of(len(slots)), self._most.of(nodes)
        for queries in reversed(_buckets(min(len(slots) * nodes, MOST_PREPARED))):
            shape = _shape(batch, queries, most)
            one = wanted()
            if self._recordings.has_place_for(_key(shape, width, one)):
                with suppress(torch.OutOfMemoryError, TooLargeError):  # perhaps no pass as large will come
                    self._recorded(shape, width, one, now=False)

    def walked_rows(self, rows: Tensor, inputs: PassInputs, walks: Walks) -> dict[int, Tensor]:
        if not walks:
            return {}
        # their places are on the device already; what is behind a path's end is the row of some node
        longest = max(len(walk.path) for walk in walks.values())
        places = self._walked[:, :longest].reshape(-1).clamp(max=len(rows) - 1)
        found = rows.index_select(0, places)
        row_of = {slot: row for row, slot in enumerate(_taking(inputs))}
        return {slot: found[row_of[slot] * longest :][: len(walk.path)] for slot, walk in walks.items()}

    def _form(self, slots: Collection[int], drawn: Mapping[int, NodeDraws], trees: int) -> DrawingForm | None:
        """How tokens are drawn within the pass; None where none are, or behind it, as where nothing is recorded."""
        return self._forms.of(slots, drawn, trees) if drawn and self._recordings.draws else None

    def _plain(self, work: Callable[[TreeView], T], kind: Hashable, fill: Mapping[str, int]) -> _Kind[T]:
        return _Kind(kind, lambda given: work(self._view(given, given.more)), fill)

    def _walking(
        self, work: Callable[[TreeView], Made], kind: Hashable, ends: frozenset[int], form: DrawingForm | None
    ) -> _Kind[tuple[Tensor, Tensor, Made]]:
        def walk(given: _DevicePass) -> tuple[Tensor, Tensor, Made]:
            made = work(self._view(given, {}))
            tokens = made[0].argmax(-1) if form is None else form.tokens(made[0], given.more)
            return *self._follow(tokens, given, ends), made

        fill = {"parents": -1, **(form.fill if form is not None else {})}
        return _Kind(("walk", kind, ends, form), walk, fill, draws=form is not None)

    def _drawing(self, work: Callable[[TreeView], Made], kind: Hashable) -> _Kind[tuple[Made, _DevicePass]]:
        fill = {"parents": -1, **DRAW_FILL}
        return _Kind(("draw", kind), lambda given: (work(self._view(given, {})), given), fill)

    def _keep(self, ends: frozenset[int]) -> None:
        """Have these tokens on the device; a recorded pass cannot send them."""
        if ends not in self._ends:
            self._ends[ends] = torch.tensor(sorted(ends), dtype=torch.int32, device=self.device)

    def _follow(
        self, tokens: Tensor, given: _DevicePass, ends: frozenset[int], within: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Walk along the tokens after the nodes, shape `(queries,)`, and commit.

        Args:
            tokens: likewise.
            given: the pass.
            ends: tokens that end the texts.
            within: whether a path may go to a node, shape `(queries,)`; None for to all.

        Returns:
            What `greedy_walk` does, and the queries of the accepted nodes by sequence.
        """
        layout, parents = given.layout, given.more["parents"]
        if within is not None:
            parents = torch.where(within, parents, -1)
        longest = layout.depths.shape[1]
        walks = self._backend.greedy_walk(tokens, given.ids, parents, layout.sequences, self._ends[ends], longest)
        self._move(layout.sequences, walks, given.table)
        return walks, walks[:, 2:].clamp(min=0) + layout.sequences[:, 3:]

    @torch.inference_mode()
    def commit(self, paths: Mapping[int, IntArray]) -> None:
        self._check_paths(paths)
        if all(np.array_equal(path, np.arange(len(path))) for path in paths.values()):
            self.cache.committed({slot: len(path) for slot, path in paths.items()})  # nothing moves
            return
        sequences = np.zeros((len(paths), 4), dtype=np.int32)
        sequences[:, 0] = [self.cache.lengths[slot] for slot in paths]
        walks = np.full((len(paths), 2 + max(map(len, paths.values()))), -1, dtype=np.int32)
        for walk, path in zip(walks, paths.values(), strict=True):
            walk[0] = len(path)
            walk[2 : 2 + len(path)] = path
        arrays = sequences, walks, self.cache.table([*paths])
        self._move(*sent_together(arrays, self.device))
        self.cache.committed({slot: len(path) for slot, path in paths.items()})

    def call(self, kind: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        if not self._recordings.active:
            return function(*inputs)
        rows = len(inputs[0])
        key = ("call", kind, bucket(rows))
        recorded = self._recordings.find(key)
        if recorded is None:
            own = tuple(tensor.new_zeros((bucket(rows), *tensor.shape[1:])) for tensor in inputs)
            recorded = self._recordings.record(key, own, lambda: function(*own), on_cache=False)
        if recorded.repeat is None:
            return function(*inputs)
        for room, tensor in zip(recorded.inputs, inputs, strict=True):
            room[:rows].copy_(tensor)
        recorded.repeat()
        found: T = recorded.out
        return found

    def lasting(self, found: Tensor) -> Tensor:
        return found.clone() if self._recordings.active else found

    def forget(self) -> None:
        wait_for(self.device)  # what is given up may be of another stream, and be read in this one still
        self._recordings.forget()
        self._forms.forget()

    def _view(self, given: _DevicePass, more: Mapping[str, Tensor]) -> TreeView:
        """What a pass is shown; of further numbers only these, as what is for a walk is nothing to the pass."""
        held = {given.table.device: (given.layout, given.table)}

        def attend(query: Tensor, key: Tensor, value: Tensor, _: PackedLayout, **options: Any) -> Tensor:
            if query.device not in held:  # the first layer there
                held[query.device] = given.copied(query.device)
            layout, table = held[query.device]
            return self._backend.attend_packed(query, key, value, layout, table=table, **options)

        asked = {name: numbers.long() for name, numbers in more.items()}
        return TreeView(given.ids.long(), given.positions.long(), TreePass(given.layout, attend), asked)

    def _run(self, inputs: PassInputs, kind: _Kind[T], more: Mapping[str, IntArray]) -> T:
        self._make_room(inputs.counts)
        taking = _taking(inputs)
        layout, table = inputs.layout.of_some(taking), self.cache.table(taking)
        own = layout.shape
        queries = bucket(own.queries)
        shape = _shape(self._batch.of(own.batch), queries, self._most.of(own.most), own.nodes)
        found = self._recorded(shape, table.shape[1], kind)
        _, rows = self.cache.next_rows(inputs.counts)
        which = np.repeat(np.arange(len(taking)), [inputs.counts[slot] for slot in taking])
        places = {"pages": table[which, rows // PAGE_ROWS], "rows": rows % PAGE_ROWS}
        memory = found.inputs
        memory.send(inputs, layout, table, {**places, **more})
        if found.repeat is None:
            out: T = self._work(memory, kind)
        else:
            found.repeat()
            out = found.out
        self.cache.staged_now(inputs.counts)
        return out

    def _make_room(self, counts: Sequence[int]) -> None:
        """As `PagedCache.make_room_for`; what is recorded on buffers that are given up is given up as well."""
        self.cache.make_room_for(counts)
        if self._reallocations != self.cache.reallocations:
            wait_for(self.device)  # as where all is given up
            self._recordings.forget_passes()
            self._reallocations = self.cache.reallocations

    def _recorded(self, shape: PackedShape, width: int, kind: _Kind[Any], now: bool = True) -> Recorded:
        """What is kept of passes of a kind and a size; recorded the first time.

        Args:
            shape: of the layout.
            width: pages of each sequence.
            kind: of the pass.
            now: whether it is to be run; as `wanted` of `Recordings.record`.
        """
        key = _key(shape, width, kind)
        found = self._recordings.find(key)
        if found is None:
            memory = _Memory(shape, width, kind.fill, lambda size: self._outbox(size, self.device))
            memory.send_nothing()
            work = partial(self._work, memory, kind)
            found = self._recordings.record(key, memory, work, on_cache=True, wanted=now, draws=kind.draws)
        return found

    def _work(self, memory: _Memory, kind: _Kind[T]) -> T:
        self.cache.stage_at(memory.pages.long(), memory.rows.long())
        return kind.work(memory.on_device)

    def _move(self, sequences: Tensor, walks: Tensor, table: Tensor) -> None:
        """Commit to the cache, on each device with a mover that is made once for its buffers."""
        if self._movers[0] != self.cache.reallocations:
            on_each: dict[torch.device, list[Tensor]] = {}
            for buffer in self.cache.buffers():
                on_each.setdefault(buffer.device, []).append(buffer)
            movers = {device: self._backend.mover(buffers) for device, buffers in on_each.items()}
            self._movers = self.cache.reallocations, movers
        for device, mover in self._movers[1].items():
            mover(*(numbers.to(device, non_blocking=True) for numbers in (sequences, walks, table)))


def _shape(batch: int, queries: int, most: int, nodes: int = 1) -> PackedShape:
    """The layout of a pass: what trees have room for follows from the rest, as where whole trees are run.

    Args:
        batch: room for sequences.
        queries: room for queries.
        most: room for queries of one sequence, of which there are no more than of all.
        nodes: of the largest tree.
    """
    most = min(most, queries)
    return PackedShape(batch, node_room(max(nodes, most)), queries, most)


def _key(shape: PackedShape, width: int, kind: _Kind[Any]) -> Hashable:
    """Tells passes apart, as `DeviceExecutor._recorded` keeps them."""
    return "pass", kind.key, shape, width


def _taking(inputs: PassInputs) -> list[int]:
    """The slots that take part in a pass: its batch is of these alone, in their order."""
    return [slot for slot, count in enumerate(inputs.counts) if count]


def executor_for(
    attention: AttentionBackend,
    device: torch.device,
    recorder: Recorder | None = None,
    others: Sequence[torch.device] = (),
) -> Executor:
    """An executor with a cache of its own: on the device where the backend needs nothing from the host.

    Args:
        attention: computes tree attention.
        device: where the network is, or its first layer.
        recorder: records passes, so that they are repeated without Python; of use on one device alone.
        others: further devices that layers of the network are on.
    """
    if isinstance(attention, DeviceBackend):
        return DeviceExecutor(attention, device, recorder, others=others)
    return HostExecutor(attention, device, attention.recorder() if recorder is None else None)
