"""Memory that a drafter gives up in a stream of its own: the target's stream gets it when nobody reads it any more."""

from collections.abc import Callable

import pytest
import torch

from talon_core.runtime import HostExecutor, KeptRows
from talon_core.runtime.cache import KeyValueCache, TreeCache
from talon_core.runtime.device import DeviceExecutor
from talon_core.runtime.pages import PAGE_ROWS, PagedCache
from talon_core.runtime.rows import FEWEST_ROWS
from talon_core.testing.plain_device import PlainDevice
from talon_kernels import ReferenceAttention
from talon_tests.stream_tensors import OnStream
from talon_tests.streams import On, Race, Stream, StreamDevice


def grows_a_table(device: StreamDevice) -> Callable[[], object]:
    """What moves a table of rows, all of which the target's stream has written."""
    rows = KeptRows(HostExecutor(ReferenceAttention(), torch.device("cpu")))
    rows.keep(OnStream.of(device, torch.ones(3, 2)))
    return lambda: rows.reserve(2 * FEWEST_ROWS)


def grows_a_cache(device: StreamDevice, cache: KeyValueCache) -> Callable[[], object]:
    """What moves the buffers of a cache, which were made by the target's stream."""
    cache.open(0, PAGE_ROWS)
    cache.make_room_for([PAGE_ROWS])
    cache.layer(0, *[OnStream.of(device, torch.ones(1, 1, 3, 2)) for _ in range(2)])
    cache.lengths[0] = PAGE_ROWS
    return lambda: cache.make_room_for([4 * PAGE_ROWS])


def gives_a_cache_up(device: StreamDevice, cache: KeyValueCache, opens: bool = False) -> Callable[[], object]:
    """What makes others of its buffers, in which nothing is kept, though a pass still writes to them."""
    grows = grows_a_cache(device, cache)
    cache.lengths[0] = 0

    def give_up() -> None:
        for buffer in cache.buffers():
            buffer[:] = 1.0
        del buffer
        cache.open(0, 8 * PAGE_ROWS) if opens else grows()

    return give_up


WAYS: dict[str, Callable[[StreamDevice], Callable[[], object]]] = {
    "table": grows_a_table,
    "pages": lambda device: grows_a_cache(device, PagedCache()),
    "rows": lambda device: grows_a_cache(device, TreeCache()),
    "pages given up": lambda device: gives_a_cache_up(device, PagedCache()),
    "rows given up": lambda device: gives_a_cache_up(device, TreeCache()),
    "rows for another text": lambda device: gives_a_cache_up(device, TreeCache(), opens=True),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StreamDevice:
    made = StreamDevice()
    made.install(monkeypatch)
    return made


def given_up_beside_the_target(device: StreamDevice, grows: Callable[[], object]) -> None:
    """Grow something in the drafter's stream, while the target goes on and takes memory of its own."""
    drafting = Stream(device)
    drafting.wait_stream(device.main)
    with On(device, drafting):
        grows()
    for _ in range(4):
        OnStream.of(device, torch.ones(3))


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_a_drafter_gives_up_is_taken_by_nobody_while_it_is_read(device: StreamDevice, way: str) -> None:
    given_up_beside_the_target(device, WAYS[way](device))


@pytest.mark.parametrize("way", WAYS)
def test_where_it_is_not_told_that_memory_is_used_there_is_a_race(
    device: StreamDevice, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    grows = WAYS[way](device)
    monkeypatch.setattr(OnStream, "record_stream", lambda *_: None)
    with pytest.raises(Race, match="is used on stream 0, and may still be used on stream 1"):
        given_up_beside_the_target(device, grows)


def test_recordings_are_given_up_when_nobody_reads_their_memory(device: StreamDevice) -> None:
    """It was allocated where they were first wanted, and they may be repeated in another stream."""
    executor = DeviceExecutor(PlainDevice(), torch.device("cuda"))
    executor.forget()
    executor.cache.open(0, 10)
    executor._make_room([1])
    assert device.done == ["wait for a stream"] * 2
