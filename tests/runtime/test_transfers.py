"""Memory that Python writes to and a device copies from: nothing is written before it was copied."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from talon_core import TokenTree
from talon_core.runtime import recording, transfers
from talon_core.runtime.device import DeviceExecutor
from talon_core.runtime.executor import TreeView
from talon_core.runtime.recording import CudaGraphs
from talon_core.runtime.transfers import Outbox, fetched, sent, sent_together
from talon_core.testing.plain_device import PlainDevice
from talon_tests.stream_tensors import OnStream, pin
from talon_tests.streams import Event, Race, StreamDevice


class Noted(np.ndarray):
    """Numbers that say when they are written to."""

    written: Callable[[], None]

    def __array_finalize__(self, of: Any) -> None:
        self.written = getattr(of, "written", lambda: None)

    def __setitem__(self, at: Any, value: Any) -> None:
        self.written()
        super().__setitem__(at, value)


class WatchedOutbox(Outbox):
    """An outbox whose copies a stream of stubs makes, in its time."""

    def __init__(self, device: StreamDevice, size: int) -> None:
        super().__init__(size, torch.device("cpu"), torch.cuda.Event())  # type: ignore[no-untyped-call]  # torch has no types here
        self._device = device
        self.numbers = self.numbers.view(Noted)
        self.numbers.written = lambda: device.host_touch("numbers here", write=True)

    def _copy(self) -> None:
        self._device.launch("send", reads=("numbers here",), writes=("numbers",))
        super()._copy()


def run_passes(device: StreamDevice, recorder: CudaGraphs | None) -> None:
    """Three passes of one shape, none of which is waited for."""
    executor = DeviceExecutor(
        PlainDevice(), torch.device("cpu"), recorder, outbox=lambda size, _: WatchedOutbox(device, size)
    )

    def work(view: TreeView) -> torch.Tensor:
        device.launch("layers", reads=("numbers",), writes=("rows", "logits"))
        return view.ids + 0

    tree = TokenTree([1, 2], [-1, 0], [0.0, 0.0])
    executor.cache.open(0, 20)
    for _ in range(3):
        executor.run(executor.inputs({0: (tree, 0)}), work, "work")
        executor.commit({0: np.array([0, 1])})


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StreamDevice:
    made = StreamDevice()
    made.install(monkeypatch)
    monkeypatch.setattr(recording, "_CAPTURES", recording._Captures())
    return made


@pytest.mark.parametrize("recorder", [CudaGraphs, lambda: None])
def test_numbers_of_a_pass_are_written_when_those_before_them_are_copied(
    device: StreamDevice, recorder: Callable[[], CudaGraphs | None]
) -> None:
    run_passes(device, recorder())
    assert device.done.count("send") == device.done.count("record") == 4


@pytest.mark.parametrize("what", ["synchronize", "record"])
def test_without_waiting_for_the_copy_there_is_a_race(
    device: StreamDevice, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(Event, what, lambda _: None)
    with pytest.raises(Race, match="numbers here is used by the host, and may still be used on stream 0"):
        run_passes(device, None)


def test_what_is_fetched_is_there_when_it_is_read_and_its_copy_waits_for_nothing(device: StreamDevice) -> None:
    found = OnStream.of(device, torch.arange(3))
    assert fetched(found).numpy().tolist() == [0, 1, 2]
    assert device.done == ["fill", "fetch", "wait for a stream"]
    assert device.waiting_copies == 0


def test_the_stub_finds_numbers_that_are_read_before_they_are_there(
    device: StreamDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "wait_for", lambda _: None)
    with pytest.raises(Race, match="is used by the host, and may still be used on stream 0"):
        fetched(OnStream.of(device, torch.arange(3))).numpy()


def test_what_is_sent_is_not_waited_for(device: StreamDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch, device)
    there = sent(np.arange(3), torch.device("cuda"))
    assert isinstance(there, OnStream)
    assert device.done == ["send"]
    assert device.waiting_copies == 0
    assert fetched(there).numpy().tolist() == [0, 1, 2]


def test_arrays_that_are_sent_together_are_one_copy_that_is_not_waited_for(
    device: StreamDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(monkeypatch, device)
    one, two = sent_together([np.arange(3), np.arange(4).reshape(2, 2)], torch.device("cuda"))
    assert device.done == ["send"]
    assert device.waiting_copies == 0
    assert fetched(one).numpy().tolist() == [0, 1, 2]
    assert fetched(two).numpy().tolist() == [[0, 1], [2, 3]]
