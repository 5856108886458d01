"""What `CudaGraphs` does with streams and captures, on a device of stubs that fails at each operation in turn."""

from collections.abc import Callable
from functools import partial
from threading import Thread

import pytest
import torch

from talon_core.runtime import recording
from talon_core.runtime.recording import CudaGraphs, Recording, used_beside
from talon_tests.streams import On, Race, Stream, StreamDevice


def work(device: StreamDevice) -> str:
    """A pass: it reads its inputs, writes rows of the cache, and moves them."""
    device.launch("layers", reads=("inputs",), writes=("rows", "logits"))
    device.launch("walk", reads=("inputs", "logits"), writes=("walks",))
    device.launch("commit", reads=("inputs", "walks"), writes=("rows",))
    return "logits"


def next_pass(device: StreamDevice) -> None:
    """What overwrites all that a pass reads, and reads what it writes."""
    device.launch("send", writes=("inputs",))
    device.launch("layers", reads=("inputs",), writes=("rows", "logits", "walks"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], StreamDevice]:
    """Makes a device whose operation of this index fails, with no capture before it in the process."""

    def made(fails_at: int | None = None) -> StreamDevice:
        one = StreamDevice(fails_at)
        one.install(monkeypatch)
        monkeypatch.setattr(recording, "_CAPTURES", recording._Captures())
        one.launch("send", writes=("inputs",)) if fails_at is None else None
        return one

    return made


def operations(device: Callable[..., StreamDevice]) -> list[str]:
    """What is done in the first record of a process that succeeds."""
    one = device()
    before = len(one.done)
    CudaGraphs().record(partial(work, one))
    return one.done[before:]


def test_a_pass_is_warmed_up_captured_and_repeated_in_order(device: Callable[..., StreamDevice]) -> None:
    one = device()
    recorder = CudaGraphs()
    out, repeat = recorder.record(partial(work, one))
    for _ in range(2):
        next_pass(one)
        repeat()
    assert out == "logits"
    recorder.record(partial(work, one))
    next_pass(one)
    assert one.modes == ["thread_local"] * 2  # other threads may allocate memory


def test_the_stub_finds_what_is_not_in_order(device: Callable[..., StreamDevice]) -> None:
    one = device()
    with On(one, Stream(one)), pytest.raises(Race, match="inputs is used on stream 1, and may still be used on"):
        work(one)


def test_all_captures_of_a_recorder_have_one_pool_though_nobody_keeps_the_graphs(
    device: Callable[..., StreamDevice],
) -> None:
    one = device()
    recorder = CudaGraphs()
    for _ in range(3):
        recorder.record(partial(work, one))
    one.short = lambda _: one.capturing is not None
    with pytest.raises(torch.OutOfMemoryError):
        recorder.record(partial(work, one))
    one.short = lambda _: False
    recorder.record(partial(work, one))
    assert len(one.pools) == 5
    assert len({*one.pools}) == 1
    CudaGraphs().record(partial(work, one))
    assert one.pools[-1] is not one.pools[0]  # graphs of one pool may not be repeated beside one another


def test_wherever_recording_fails_order_is_restored(device: Callable[..., StreamDevice]) -> None:
    tried = operations(device)
    assert tried.count("layers") == 3  # two to warm up, and the one that is captured
    for fails_at, name in enumerate(tried):
        one = device(fails_at)
        with pytest.raises(RuntimeError, match=rf"injected at operation {fails_at}, {name}|invalidated"):
            CudaGraphs().record(partial(work, one))
        one.fails_at = None
        assert one.current is one.main, name
        assert one.sync_mode == 0, name
        next_pass(one)  # a race if anything is under way


def test_after_a_capture_that_failed_there_is_no_other(device: Callable[..., StreamDevice]) -> None:
    tried = operations(device)
    failed_to_capture = 0
    for fails_at, _ in enumerate(tried):
        one = device(fails_at)
        with pytest.raises(RuntimeError):
            CudaGraphs().record(partial(work, one))
        one.fails_at = None
        captures = len(one.modes)
        if captures:  # one was tried
            failed_to_capture += 1
            before = len(one.done)
            with pytest.raises(RuntimeError, match=r"nothing is captured after .* broke off \((inject|the c)"):
                CudaGraphs().record(partial(work, one))
            assert len(one.modes) == captures
            assert len(one.done) == before  # it is not warmed up either
    assert failed_to_capture == len(tried) - tried.index("capture_begin")


@pytest.mark.parametrize("launch", ["layers", "walk", "commit"])
@pytest.mark.parametrize(("what", "error"), [("short", torch.OutOfMemoryError), ("pressed", KeyboardInterrupt)])
def test_a_capture_that_memory_is_too_short_for_or_ctrl_c_ends_keeps_no_other_from_being_captured(
    device: Callable[..., StreamDevice], launch: str, what: str, error: type[BaseException]
) -> None:
    one = device()
    recorder = CudaGraphs()
    _, earlier = recorder.record(partial(work, one))
    setattr(one, what, lambda name: name == launch and one.capturing is not None)
    with pytest.raises(error):
        recorder.record(partial(work, one))
    setattr(one, what, lambda _: False)
    assert (one.current, one.sync_mode) == (one.main, 0)
    _, later = recorder.record(partial(work, one))
    for repeat in earlier, later:
        next_pass(one)
        repeat()
    assert one.done.count("capture_end") == 3


def test_a_capture_that_breaks_off_where_memory_is_too_short_is_the_last(device: Callable[..., StreamDevice]) -> None:
    one = device()

    def short(_: str) -> bool:
        one.broken = one.capturing is not None
        return one.broken

    one.short = short
    with pytest.raises(RuntimeError, match="invalidated"):
        CudaGraphs().record(partial(work, one))
    with pytest.raises(RuntimeError, match="nothing is captured after"):
        CudaGraphs().record(partial(work, one))


def test_a_pass_that_cannot_be_warmed_up_leaves_others_to_be_captured(device: Callable[..., StreamDevice]) -> None:
    tried = operations(device)
    first = tried.index("layers")
    one = device(first)
    recorder = CudaGraphs()
    with pytest.raises(RuntimeError, match="injected"):
        recorder.record(partial(work, one))
    one.fails_at = None
    _, repeat = recorder.record(partial(work, one))
    next_pass(one)
    repeat()


def test_what_a_recorder_refuses_is_told_once_with_its_reason(device: Callable[..., StreamDevice]) -> None:
    one = device(operations(device).index("capture_end"))
    first, second = Recording(CudaGraphs()), Recording(CudaGraphs())
    with pytest.warns(RuntimeWarning, match="without CUDA graphs, which is slower: injected at operation"):
        assert first.record(partial(work, one)) is None
    with pytest.warns(RuntimeWarning, match="nothing is captured after a capture of this process broke off"):
        assert second.record(partial(work, one)) is None
    tried = len(one.done)
    assert first.record(partial(work, one)) is None
    assert len(one.done) == tried
    assert first.failure is not None
    assert not first.active


def test_beside_another_thread_it_is_not_looked_for_questions(device: Callable[..., StreamDevice]) -> None:
    one = device()
    with used_beside():
        CudaGraphs().record(partial(work, one))
    assert "set_sync_debug_mode" not in one.done


class Beside:
    """What another thread records while this one captures."""

    def __init__(self, device: StreamDevice) -> None:
        self.outcome: list[object] = []
        self._device = device
        self._thread = Thread(target=self._record)

    def _record(self) -> None:
        try:
            self.outcome.append(CudaGraphs().record(partial(self._device.launch, "draft", writes=("drafted",))))
        except RuntimeError as error:
            self.outcome.append(error)

    def work(self) -> str:
        """A pass that is being captured when the other thread begins, which gets time to go wrong."""
        if self._device.capturing is not None:
            self._thread.start()
            self._thread.join(0.05)
        return work(self._device)

    def wait(self) -> object:
        self._thread.join()
        return self.outcome[0]


def test_two_threads_capture_one_after_another(device: Callable[..., StreamDevice]) -> None:
    one = device()
    beside = Beside(one)
    with used_beside():
        out, repeat = CudaGraphs().record(beside.work)
        other = beside.wait()
    assert out == "logits"
    assert isinstance(other, tuple), other
    next_pass(one)
    repeat()
    other[1]()
    assert one.done.count("capture_end") == 2


def test_a_thread_that_waited_for_a_capture_that_breaks_off_captures_nothing(
    device: Callable[..., StreamDevice],
) -> None:
    one = device()
    beside = Beside(one)

    def breaks_off() -> None:
        beside.work()
        if one.capturing is not None:
            raise RuntimeError("it asks")

    with used_beside(), pytest.raises(RuntimeError, match="it asks"):
        CudaGraphs().record(breaks_off)
    assert "after a capture of this process broke off (it asks)" in str(beside.wait())
    assert len(one.modes) == 1
