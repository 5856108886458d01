"""Passes over trees as a device runs them: inputs come in one copy, memory stays, what can be recorded is repeated."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from talon_core.attention import AttentionBackend, DeviceBackend, PackedLayout, PackedShape
from talon_core.errors import one_line
from talon_core.runtime.cache import TreeCache
from talon_core.runtime.inputs import PassInputs
from talon_core.tree import IntArray

T = TypeVar("T")

GRANULE = 1024
"""Caches that recorded passes write to have a multiple of so many rows: other buffers would need other recordings."""

FEWEST_NODES = 32
"""Nodes of a tree that every pass has room for, so that growing trees change no shape."""


def bucket(count: int) -> int:
    """The size at which a pass over `count` nodes is captured: a power of two, or from 32 on half way to the next."""
    size = 1
    while size < count:
        size *= 2
    return size * 3 // 4 if size > 32 and count <= size * 3 // 4 else size


class Recorder(ABC):
    """Writes down what a function does on a device, so that it can be done again without Python."""

    @abstractmethod
    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record one call.

        Args:
            function: works on device memory alone. It may be called several times before it is recorded.

        Returns:
            What the recorded call returned, and what repeats it: the same work on the same memory, the returned
            tensors among it. Of what is returned nothing has been computed yet.

        Raises:
            RuntimeError: if the function cannot be recorded, as it asks the device for something.
        """


class CudaGraphs(Recorder):
    """CUDA graphs, which share one pool of memory: what one of them returns may be lost when another is repeated."""

    def __init__(self) -> None:
        self._stream: Any = None  # one for warming up and for capturing, so that libraries have their memory by then
        self._last: Any = None  # keeps the pool alive where all other graphs are given up

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
        before = torch.cuda.current_stream()
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            function()  # kernels are compiled and buffers made
            with _asking_raises():  # found here, it does no harm; a capture that breaks off may
                function()
        before.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        pool = self._last.pool() if self._last is not None else None
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                out = function()
        finally:
            torch.cuda.set_stream(before)  # a capture that breaks off leaves its own
        self._last = graph
        return out, graph.replay


@contextmanager
def _asking_raises() -> Iterator[None]:
    """While entered, an operation that waits for the device is a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@attrs.frozen(eq=False)
class DevicePass:
    """What a pass reads on the device. The memory is written anew for each pass of the same shape.

    Attributes:
        ids: token ids, shape `(queries,)`, int32; padding is 0.
        positions: shape `(queries,)`, int32.
        layout: who may attend to whom.
        more: what else was sent, each of shape `(queries,)`, int32.
    """

    ids: Tensor
    positions: Tensor
    layout: PackedLayout
    more: Mapping[str, Tensor]


class _Numbers:
    """All numbers of a pass, in one piece of memory here and one on the device."""

    def __init__(self, shape: PackedShape, fill: Mapping[str, int], device: torch.device) -> None:
        self.shape = shape
        self._fill = {"ids": 0, "positions": 0, "rows": 0, **fill}
        pinned = device.type == "cuda"
        size = shape.size + len(self._fill) * shape.queries
        self._here = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
        self._there = torch.zeros(size, dtype=torch.int32, device=device)
        self._sent = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]  # nor here
        numbers: NDArray[np.int32] = self._here.numpy()
        self._layout = numbers[: shape.size]
        self._parts = dict(zip(self._fill, self._split(numbers), strict=True))
        more = dict(zip(self._fill, self._split(self._there), strict=True))
        ids, positions, self.rows, self.slots = (more.pop(name) for name in ("ids", "positions", "rows", "slots"))
        self.on_device = DevicePass(ids, positions, shape.views(self._there[: shape.size]), more)

    def _split(self, numbers: Any) -> list[Any]:
        return list(numbers[self.shape.size :].reshape(-1, self.shape.queries))

    def clear(self) -> None:
        """A pass over nothing."""
        self._layout[:] = 0
        for name, part in self._parts.items():
            part[:] = self._fill[name]

    def write(self, inputs: PassInputs, more: Mapping[str, IntArray]) -> None:
        self.shape.write(inputs.layout, self._layout)
        count = inputs.layout.queries
        parts = {"ids": inputs.ids.numpy(), "positions": inputs.positions.numpy(), **more}
        for name, part in self._parts.items():
            part[:count] = parts[name]
            part[count:] = self._fill[name]

    def send(self) -> None:
        self._there.copy_(self._here, non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        """Until the memory here may be written to again."""
        if self._sent is not None:
            self._sent.synchronize()


@attrs.frozen(eq=False)
class _Recorded:
    numbers: _Numbers
    out: Any
    repeat: Callable[[], None] | None


class DevicePasses:
    """Runs passes over trees whose every input is in device memory.

    Args:
        cache: the keys and values that the passes write to.
        device: where it is.
        recorder: records passes, each shape once; None runs them as they are.
    """

    def __init__(self, cache: TreeCache, device: torch.device, recorder: Recorder | None = None) -> None:
        self._recording = _Recording(recorder)
        self._cache = cache
        self._device = device
        self._recorded: dict[Hashable, _Recorded] = {}
        self._generation = cache.generation

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded any more, if recording has failed."""
        return self._recording.failure

    def run(
        self,
        inputs: PassInputs,
        work: Callable[[DevicePass], T],
        kind: Hashable,
        more: Mapping[str, IntArray],
        fill: Mapping[str, int],
    ) -> T:
        """Run one pass.

        Args:
            inputs: what is to be run.
            work: the pass. Whatever it reads beside its argument must be the same for the same `kind`, or device
                memory that stays where it is.
            kind: tells different `work` apart.
            more: further numbers for each query, sent with the others, each of shape `(queries,)`.
            fill: for each of them what stands behind the queries, and everywhere in the passes over nothing that come
                before a recording.

        Returns:
            What `work` returned; where passes are recorded, memory that the next pass of this object overwrites.
        """
        starts = [length + staged for length, staged in zip(self._cache.lengths, self._cache.staged, strict=True)]
        ends = [start + count for start, count in zip(starts, inputs.counts, strict=True)]
        self._cache.make_room(max(ends) + 1)  # one row for what is padding
        if self._generation != self._cache.generation:
            self.forget()
            self._generation = self._cache.generation
        nodes = max(FEWEST_NODES, bucket(int(inputs.layout.nodes.max())))
        shape = PackedShape(len(starts), nodes, bucket(inputs.layout.queries))
        key = (kind, shape)
        found = self._recorded.get(key)
        if found is None:
            # what is padding is written behind all sequences' rows
            numbers = _Numbers(shape, {"slots": self._cache.capacity - 1, **fill}, self._device)
            found = self._recorded[key] = self._made(numbers, work)
        rows = np.repeat(np.arange(len(inputs.counts)), inputs.counts)
        slots = np.concatenate([np.arange(*of) for of in zip(starts, ends, strict=True)])
        found.numbers.wait()
        found.numbers.write(inputs, {"rows": rows, "slots": slots, **more})
        found.numbers.send()
        if found.repeat is None or self.failure is not None:
            return self._work(found.numbers, work)
        found.repeat()
        out: T = found.out
        return out

    def forget(self) -> None:
        """Give up what was recorded, because memory that it uses is given up."""
        self._recorded.clear()

    def _work(self, numbers: _Numbers, work: Callable[[DevicePass], T]) -> T:
        self._cache.stage_at(numbers.rows.long(), numbers.slots.long())
        return work(numbers.on_device)

    def _made(self, numbers: _Numbers, work: Callable[[DevicePass], Any]) -> _Recorded:
        numbers.clear()
        numbers.send()
        recorded = self._recording.record(lambda: self._work(numbers, work))
        if recorded is None:
            return _Recorded(numbers, None, None)
        return _Recorded(numbers, *recorded)


def cache_for(
    attention: AttentionBackend, device: torch.device, recorder: Recorder | None
) -> tuple[TreeCache, DevicePasses | None]:
    """A cache for a backend, and what runs passes over it on the device; None where the backend needs the host."""
    if not isinstance(attention, DeviceBackend):
        return TreeCache(), None
    cache = TreeCache(GRANULE)
    return cache, DevicePasses(cache, device, recorder)


class _Recording:
    """A recorder for as long as it works.

    Attributes:
        failure: why it does not any more.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self.failure: str | None = None
        self._recorder = recorder

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]] | None:
        """As `Recorder.record`; None where nothing is recorded, or no more."""
        if self._recorder is None:
            return None
        try:
            return self._recorder.record(function)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the model asks its device for something; it runs, but not as a graph
            self.failure = one_line(error)
            self._recorder = None
            why = f"passes run without CUDA graphs, which is slower: {self.failure}"
            warnings.warn(why, RuntimeWarning, stacklevel=2)
            return None


class RecordedFunctions:
    """Runs functions of tensors, row by row the same, each recorded once for a number of rows.

    Args:
        recorder: None runs them as they are.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recording = _Recording(recorder)
        self._recorded: dict[Hashable, tuple[tuple[Tensor, ...], Any, Callable[[], None]] | None] = {}

    @property
    def records(self) -> bool:
        """Whether functions are recorded."""
        return self._recording.active

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded any more, if recording has failed."""
        return self._recording.failure

    def __call__(self, kind: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        """Call a function.

        Args:
            kind: tells different functions apart.
            function: reads beside its arguments only what stays where it is.
            inputs: each of shape `(rows, ..)`, those of one kind with the same further sizes.

        Returns:
            What the function returns for these rows, and behind them perhaps for others; where it was recorded,
            memory that the next call overwrites.
        """
        rows = len(inputs[0])
        key = (kind, bucket(rows))
        if key not in self._recorded:
            own = tuple(tensor.new_zeros((bucket(rows), *tensor.shape[1:])) for tensor in inputs)
            made = self._recording.record(lambda: function(*own))
            self._recorded[key] = None if made is None else (own, *made)
        recorded = self._recorded[key]
        if recorded is None or self.failure is not None:
            return function(*inputs)
        own, out, repeat = recorded
        for room, tensor in zip(own, inputs, strict=True):
            room[:rows].copy_(tensor)
        repeat()
        found: T = out
        return found
