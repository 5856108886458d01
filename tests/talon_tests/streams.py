"""A device that is told apart from a GPU by nothing that TALON calls: streams in order, events, graphs, and faults.

Nothing is computed. Each stream, and each thread of the host, has a vector clock, which says what has surely been done
before its next operation. Two operations on the same memory, one of which writes, are a `Race` unless one has surely
been done before the other.
"""

from collections.abc import Callable
from itertools import count
from threading import get_ident, local
from typing import Any

import pytest
import torch

Clock = dict[int, int]


class Race(AssertionError):
    """An operation may be done at the same time as another on the same memory."""


class Stream:
    """What is done in order."""

    def __init__(self, device: "StreamDevice") -> None:
        self.device = device
        self.number = len(device.streams)
        self.clock: Clock = {}
        self.free: list[str] = []  # memory that was allocated here; the last one is taken first
        device.streams.append(self)

    def wait_stream(self, other: "Stream") -> None:
        _join(self.clock, other.clock)

    def synchronize(self) -> None:
        self.device.operate("wait for a stream")
        _join(self.device.host, self.clock)


class Event:
    """A place in a stream that the host can wait for."""

    def __init__(self, device: "StreamDevice") -> None:
        self._device = device
        self._clock: Clock = {}

    def record(self) -> None:
        self._device.operate("record")
        self._clock = {**self._device.current.clock}

    def synchronize(self) -> None:
        self._device.operate("wait for an event")
        _join(self._device.host, self._clock)


class Graph:
    """What was captured: calls that are done again by `replay`."""

    def __init__(self, device: "StreamDevice") -> None:
        self._device = device
        self._pool: object = None
        self.stream: Stream | None = None
        self.nodes: list[Callable[[], None]] = []

    def pool(self) -> object:
        return self._pool

    def capture_begin(self, *pool: object, capture_error_mode: str, **_: object) -> None:
        self._pool = pool[0] if pool else object()
        self._device.pools.append(self._pool)
        self._device.modes.append(capture_error_mode)
        self._device.operate("capture_begin")
        self._device.capturing, self.stream = self, self._device.current

    def capture_end(self) -> None:
        broken, self._device.broken = self._device.broken, False
        self._device.operate("capture_end")
        self._device.capturing = None
        if broken:
            raise RuntimeError("the capture was invalidated")

    def replay(self) -> None:
        for node in self.nodes:
            node()


class StreamDevice:
    """The device.

    Args:
        fails_at: the index of the operation that fails, counted from the last time that this was set; None for none.

    Attributes:
        done: what operations were tried, by name.
        modes: the error mode of each capture that was tried.
        pools: its pool of memory.
        waiting_copies: how many copies between host and device the host has waited for.
        numbers: of pieces of memory.
        short: tells of a launch, by its name, whether there is too little memory for it; that breaks no capture off.
        pressed: tells of a launch, by its name, whether Ctrl-C is pressed before it.
    """

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.short: Callable[[str], bool] = lambda _: False
        self.pressed: Callable[[str], bool] = lambda _: False
        self.done: list[str] = []
        self.modes: list[str] = []
        self.pools: list[object] = []
        self.waiting_copies = 0
        self.numbers = count()
        self.streams: list[Stream] = []
        self.main = Stream(self)
        self._thread = local()  # each thread has a current stream of its own
        self.capturing: Graph | None = None
        self.broken = False  # the capture that goes on
        self.sync_mode = 0
        self._touched: dict[str, list[tuple[bool, int, int]]] = {}  # whether it was written, by whom and when

    @property
    def current(self) -> Stream:
        """The stream on which this thread launches."""
        return getattr(self._thread, "stream", self.main)

    @current.setter
    def current(self, stream: Stream) -> None:
        self._thread.stream = stream

    @property
    def host(self) -> Clock:
        """What this thread knows to be done."""
        if not hasattr(self._thread, "host"):
            self._thread.host = {}
        found: Clock = self._thread.host
        return found

    def operate(self, name: str) -> None:
        """Count an operation, and fail if it is the one that does."""
        self.done.append(name)
        if self.fails_at == len(self.done) - 1:
            self.broken = self.capturing is not None
            raise RuntimeError(f"injected at operation {self.fails_at}, {name}")

    def launch(self, name: str, reads: tuple[str, ...] = (), writes: tuple[str, ...] = ()) -> None:
        """A kernel on the current stream, or one that is captured."""
        self.operate(name)
        if self.pressed(name):
            raise KeyboardInterrupt
        if self.short(name):
            raise torch.OutOfMemoryError(f"there is too little memory for {name}")
        if self.capturing is not None and self.capturing.stream is self.current:
            self.capturing.nodes.append(lambda: self._run(reads, writes))
        else:
            self._run(reads, writes)

    def host_touch(self, memory: str, write: bool) -> None:
        """Python reads or writes memory that the device uses as well."""
        self._touch(-get_ident(), self.host, {memory: write})

    def synchronize(self) -> None:
        """Wait for all streams, which breaks off what any thread captures."""
        self.operate("synchronize")
        if self.capturing is not None:
            self.broken = True
            raise RuntimeError("operation not permitted when stream is capturing")
        for stream in self.streams:
            _join(self.host, stream.clock)

    def _run(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        _join(self.current.clock, self.host)
        used = {**dict.fromkeys(reads, False), **dict.fromkeys(writes, True)}
        self._touch(self.current.number, self.current.clock, used)

    def _touch(self, who: int, clock: Clock, used: dict[str, bool]) -> None:
        """Use memory, of which each is written or not. A stream has its number, a thread of the host a negative one."""
        clock[who] = clock.get(who, 0) + 1
        for memory, write in used.items():
            for wrote, other, at in self._touched.setdefault(memory, []):
                if (write or wrote) and clock.get(other, 0) < at:
                    raise Race(f"{memory} is used {_place(who)}, and may still be used {_place(other)}")
            self._touched[memory].append((write, who, clock[who]))

    def _set_sync_mode(self, mode: Any) -> None:
        if mode == "error":
            self.operate("set_sync_debug_mode")
        self.sync_mode = 2 if mode == "error" else mode

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let `torch.cuda` be this device; the context manager `torch.cuda.graph` stays PyTorch's own."""

        def set_stream(stream: Stream) -> None:
            self.current = stream

        stands_for = {
            "Stream": lambda: Stream(self),
            "Event": lambda: Event(self),
            "CUDAGraph": lambda: Graph(self),
            "current_stream": lambda *_: self.current,
            "set_stream": set_stream,
            "stream": lambda stream: On(self, stream),
            "synchronize": self.synchronize,
            "empty_cache": lambda: self.operate("empty_cache"),
            "get_sync_debug_mode": lambda: self.sync_mode,
            "set_sync_debug_mode": self._set_sync_mode,
        }
        for name, stand_in in stands_for.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)


class On:
    """While entered, a stream is the current one. What does not leave it does not give it back."""

    def __init__(self, device: StreamDevice, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._before = device.current

    def __enter__(self) -> None:
        self._device.operate("stream")
        self._before, self._device.current = self._device.current, self._stream

    def __exit__(self, *_: object) -> None:
        self._device.current = self._before


def _place(who: int) -> str:
    return f"on stream {who}" if who >= 0 else "by the host"


def _join(clock: Clock, other: Clock) -> None:
    for stream, at in other.items():
        clock[stream] = max(clock.get(stream, 0), at)
