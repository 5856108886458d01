"""What an executor keeps of what it has recorded: few, and one memory for what all of them return."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import WeakSet

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from talon_core import TokenTree
from talon_core.attention import PackedShape, TooLargeError
from talon_core.runtime import recording, recordings
from talon_core.runtime.cache import KeyValueCache, bucket
from talon_core.runtime.device import MOST_PREPARED, PATIENCE, DeviceExecutor, node_room
from talon_core.runtime.draws import take_tokens
from talon_core.runtime.executor import TreeView
from talon_core.runtime.pages import PAGE_ROWS
from talon_core.runtime.recording import CudaGraphs
from talon_core.runtime.results import FEWEST_ROWS, SharedResults
from talon_core.runtime.transfers import Outbox
from talon_core.sampling import Temperature
from talon_core.target import NodeDraws
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_tests.streams import StreamDevice

CPU = torch.device("cpu")
VOCAB, WIDTH, LARGEST = 50, 6, 90
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
STATES = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))


Draw = dict[int, NodeDraws]
"""How tokens are drawn, by slot; the numbers are still to come."""

NO_NUMBERS = np.empty(0)
DRAWS: list[Draw] = [
    {slot: NodeDraws((Temperature(0.5 + slot),), frozenset(), NO_NUMBERS) for slot in range(4)},
    {
        slot: NodeDraws(
            (Temperature(0.7), TopKLogitsWarper(9 + slot), TopPLogitsWarper(0.9 - 0.1 * slot)), frozenset(), NO_NUMBERS
        )
        for slot in range(2)
    },
]
"""Of all slots, and of some: in a pass over four, that is half of them."""


def outputs(view: TreeView) -> tuple[Tensor, Tensor]:
    """Logits and features of a model that looks at nothing but a token."""
    return TABLE[view.ids], STATES[view.ids]


def recorded() -> tuple[DeviceExecutor, TapeRecorder]:
    recorder = TapeRecorder()
    return DeviceExecutor(TapedBackend(PlainDevice()), CPU, recorder), recorder


class Inputs:
    """Makes the memory that passes read, and knows which of it somebody keeps."""

    def __init__(self) -> None:
        self.alive: WeakSet[Outbox] = WeakSet()

    def __call__(self, size: int, device: torch.device) -> Outbox:
        made = Outbox(size, device)
        self.alive.add(made)
        return made

    @property
    def retained(self) -> int:
        """Bytes of it, here and on the device."""
        return sum(one.numbers.nbytes + one.there.nbytes for one in self.alive)


def mixed_requests(count: int) -> Iterator[tuple[Draw | None, dict[int, TokenTree]]]:
    """How each is walked, if it is, and its trees: of one to four sequences, and of all sizes."""
    rng = np.random.default_rng(0)
    ways: list[Draw | None] = [None, {}, {}, DRAWS[0], DRAWS[1]]
    for _ in range(count):
        sizes = rng.integers(1, LARGEST, int(rng.integers(1, 5)))
        trees = {
            slot: TokenTree(rng.integers(0, VOCAB, size), np.arange(-1, size - 1), np.zeros(size))
            for slot, size in enumerate(sizes.tolist())
        }
        yield ways[int(rng.integers(len(ways)))], trees


def run(executor: DeviceExecutor, way: Draw | None, trees: dict[int, TokenTree]) -> list[Tensor]:
    """The logits and features of a pass, in memory of their own."""
    for slot in range(4):
        executor.cache.open(slot, 2 * LARGEST)
    inputs = executor.inputs({slot: (tree, 0) for slot, tree in trees.items()})
    if way is not None:
        drawn = {
            slot: attrs.evolve(own, numbers=np.full(len(trees[slot]), 0.3))
            for slot, own in way.items()
            if slot in trees
        }
        made, walks = executor.walk(inputs, outputs, "outputs", [*trees], frozenset(), drawn=drawn)
        states = executor.walked_rows(made[1][: inputs.layout.queries], inputs, walks)
        for slot, (path, token, _) in walks.items():
            last = TABLE[trees[slot].tokens[path[-1:]]]
            own = take_tokens(last, drawn[slot], torch.tensor([0.3]).double()) if slot in drawn else last.argmax(-1)
            assert token == int(own)
            assert torch.equal(states[slot], STATES[trees[slot].tokens[path]])
    else:
        made = executor.run(inputs, outputs, "outputs")
        executor.commit({slot: np.array([0]) for slot in trees})
    return [one[: inputs.layout.queries].clone() for one in made]


def test_a_hundred_mixed_requests_keep_few_recordings_and_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MOST_RECORDED", 10)
    inputs, recorder = Inputs(), TapeRecorder()
    executor = DeviceExecutor(TapedBackend(PlainDevice()), CPU, recorder, inputs)
    most = 0
    for way, trees in mixed_requests(100):
        most = max(most, sum(map(len, trees.values())))
        ids = torch.from_numpy(np.concatenate([tree.tokens for tree in trees.values()]))
        for found, expected in zip(run(executor, way, trees), (TABLE[ids], STATES[ids]), strict=True):
            assert torch.equal(found, expected)
        assert len(recorder.alive) <= 10
        rows = max(FEWEST_ROWS, 1 << (bucket(most) - 1).bit_length())
        walks = sum(FEWEST_ROWS * (2 + 2 * nodes) * 4 for nodes in (64, 256))  # for the longest paths of each
        assert recorder.retained <= rows * (VOCAB + WIDTH) * 4 + walks
        queries = bucket(most)  # each has an id, a position, a page, a row there, a parent, and eight parts of numbers
        largest = PackedShape(4, 256, queries, queries).size + 4 * executor.cache.width + 13 * queries
        assert inputs.retained <= 10 * largest * 4 * 2
        assert len(inputs.alive) <= 10
    assert executor.recorded == len(recorder.alive) == 10
    assert recorder.recorded > 20  # there were more than are kept


def test_batches_that_come_and_go_are_recorded_about_once_for_each_size() -> None:
    """A hundred requests of one to nine sequences, whose texts are of all lengths, three rounds each."""
    executor, recorder = recorded()
    rng, sizes = np.random.default_rng(1), set()
    for _ in range(100):
        slots = range(int(rng.integers(1, 10)))
        for slot in slots:
            executor.cache.open(slot, int(rng.integers(100, 6000)))
        for budget in rng.choice([1, 8, 24, 60], 3):
            counts = rng.integers(1, budget + 1, len(slots)).tolist()
            ids = [rng.integers(0, VOCAB, count) for count in counts]
            trees = [TokenTree(own, np.arange(-1, len(own) - 1), np.zeros(len(own))) for own in ids]
            inputs = executor.inputs({slot: (tree, 0) for slot, tree in zip(slots, trees, strict=True)})
            made, walks = executor.walk(inputs, partial(attended, executor.cache), "attended", slots, frozenset())
            assert torch.equal(made[0][: sum(counts)], STATES[torch.from_numpy(np.concatenate(ids))])
            assert {*walks} == {*slots}
            sizes.add((bucket(sum(counts)), node_room(max(counts))))
        for slot in slots:
            executor.cache.close(slot)
    assert (
        executor.cache.reallocations <= 10
    )  # for most requests they would be others if they were no larger than asked
    assert recorder.recorded <= 30 <= 2.5 * len(sizes)


def prepared(executor: DeviceExecutor, slots: int, nodes: int) -> None:
    for slot in range(slots):
        executor.cache.open(slot, 200)
    executor.prepare(range(slots), nodes, outputs, "outputs", frozenset())


def test_what_is_recorded_before_it_is_wanted_is_bounded() -> None:
    executor, recorder = recorded()
    prepared(executor, 100, 100)
    assert executor.preparations == executor.recorded == recorder.recorded == 14
    walks = sum(256 * (2 + 2 * room) * 4 for room in (64, 256))
    assert recorder.retained <= 512 * (VOCAB + WIDTH) * 4 + walks
    assert executor.cache.staged == [0] * 100


@pytest.mark.parametrize("most", [8, 60, 100, 160])
@pytest.mark.parametrize("slots", [1, 3])
def test_rounds_behind_what_was_recorded_for_them_record_nothing(slots: int, most: int) -> None:
    """Trees of any size up to the one that was told, together no more than is recorded beforehand."""
    executor, recorder = recorded()
    rng = np.random.default_rng(most)
    prepared(executor, slots, most)
    before = recorder.recorded
    for _ in range(40):
        counts = np.minimum(rng.integers(1, most + 1, slots), MOST_PREPARED // slots).tolist()
        inputs = executor.inputs({slot: (chain(count), 0) for slot, count in enumerate(counts)})
        executor.walk(inputs, outputs, "outputs", range(slots), frozenset())
        for slot in range(slots):
            executor.cache.close(slot)
            executor.cache.open(slot, 200)
    assert recorder.recorded == before > 0


def test_a_size_for_which_there_is_no_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, recorder = recorded()

    def record(function: Any) -> Any:
        if executor.preparations < 3:
            raise torch.OutOfMemoryError
        return TapeRecorder.record(recorder, function)

    monkeypatch.setattr(recorder, "record", record)
    prepared(executor, 1, 64)  # 1, 2, 4, 8, 16, 32, 48 and 64
    assert (executor.preparations, executor.recorded, executor.failure) == (8, 6, None)


def chain(nodes: int) -> TokenTree:
    return TokenTree(np.arange(nodes) % VOCAB, np.arange(-1, nodes - 1), np.zeros(nodes))


def test_a_graph_that_memory_is_too_short_for_is_left_out_and_its_pass_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = StreamDevice()
    device.install(monkeypatch)
    monkeypatch.setattr(recording, "_CAPTURES", recording._Captures())
    executor = DeviceExecutor(PlainDevice(), CPU, CudaGraphs())
    sizes: list[int] = []  # of the passes that Python has run

    def work(view: TreeView) -> tuple[Tensor, Tensor]:
        sizes.append(len(view.ids))
        device.short = lambda _: device.capturing is not None and len(view.ids) > 16
        device.launch("layers", reads=("inputs",), writes=("logits",))
        return outputs(view)

    def walk(nodes: int) -> Tensor:
        inputs = executor.inputs({0: (chain(nodes), 0)})
        return executor.walk(inputs, work, "outputs", [0], frozenset())[0][0][:nodes].clone()

    executor.cache.open(0, 300)
    executor.prepare([0], 64, work, "outputs", frozenset())
    assert sizes == [size for size in (64, 48, 32, 16, 8, 4, 2, 1) for _ in range(3)]
    assert (executor.preparations, executor.recorded, executor.failure) == (8, 5, None)
    sizes.clear()
    with pytest.warns(RuntimeWarning, match="there is too little memory to record it"):
        found = walk(40)
    assert torch.equal(found, TABLE[:40])
    assert torch.equal(walk(41), TABLE[:41])
    walk(13)
    assert sizes == [48] * 5  # two to warm up, one to capture, and two passes
    assert (executor.preparations, executor.recorded, executor.failure) == (9, 5, None)


class UpTo(PlainDevice):
    """A backend whose GPU has no room for a kernel for more than 16 queries of a sequence."""

    def attend_packed(self, *given: Any, **options: Any) -> Tensor:
        if given[3].most > 16:
            raise TooLargeError("there is no room for tiles as high")
        return super().attend_packed(*given, **options)


def test_a_kernel_that_there_is_no_room_for_ends_its_own_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StreamDevice()
    device.install(monkeypatch)
    monkeypatch.setattr(recording, "_CAPTURES", recording._Captures())
    executor = DeviceExecutor(UpTo(), CPU, CudaGraphs())
    work = partial(attended, executor.cache)
    executor.cache.open(0, 300)
    executor.prepare([0], 64, work, "attended", frozenset())
    assert (executor.preparations, executor.recorded) == (8, 5)
    for nodes in 13, 40, 13:
        inputs = executor.inputs({0: (chain(nodes), 0)})
        with pytest.raises(TooLargeError, match="no room") if nodes > 16 else nullcontext():
            executor.walk(inputs, work, "attended", [0], frozenset())
    assert (executor.recorded, executor.failure) == (5, None)
    assert executor.cache.staged == [0]
    assert device.current is device.main


def test_ctrl_c_in_a_recording_takes_no_room_for_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not taken for too little memory, after which a pass would run as it is."""
    executor, recorder = recorded()
    executor.call("sign", torch.neg, torch.ones(3, 2))

    def record(function: Any) -> Any:
        function()  # in memory for what it returns
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "record", record)
        with pytest.raises(KeyboardInterrupt):
            executor.call("sign", torch.neg, torch.ones(500, 2))
    executor.call("half", torch.neg, torch.ones(3, 2))
    assert recorder.retained == FEWEST_ROWS * 2 * 4


def test_what_memory_is_too_short_for_drops_nothing_and_takes_no_room_for_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, recorder = recorded()
    executor.call("sign", torch.neg, torch.ones(3, 2))

    def record(function: Any) -> Any:
        function()  # in memory for what it returns
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "record", record)
        with pytest.warns(RuntimeWarning, match="too little memory"):
            large = executor.call("sign", torch.neg, torch.ones(500, 2))
    assert len(large) == 500
    for rows in 3, 4:
        assert executor.call("sign", torch.neg, torch.ones(rows, 2))[:rows].tolist() == [[-1, -1]] * rows
    assert recorder.recorded == 1
    executor.call("half", torch.neg, torch.ones(3, 2))
    assert recorder.retained == FEWEST_ROWS * 2 * 4


def test_what_is_recorded_before_it_is_wanted_drops_nothing_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of more kinds than there is room for come in turns; of each kind few sizes are used."""
    monkeypatch.setattr(recordings, "MOST_RECORDED", 20)
    executor, recorder = recorded()
    before = [0]
    for turn in range(30):
        executor.cache.open(0, 200)
        ends = frozenset({turn % 5})
        executor.prepare([0], 60, outputs, "outputs", ends)
        for nodes in (60, 5):
            tree = TokenTree(np.arange(nodes) % VOCAB, np.arange(-1, nodes - 1), np.zeros(nodes))
            executor.walk(executor.inputs({0: (tree, 0)}), outputs, "outputs", [0], ends)
        executor.cache.close(0)
        before.append(recorder.recorded)
    assert before[1] == before[2] - before[1] == 8  # all that its first text may need
    assert before[10] == before[-1]  # and then nothing any more
    assert executor.recorded == 20


class NotesBatches(PlainDevice):
    """Notes for how many sequences each pass has room, and for how many queries of each."""

    def __init__(self) -> None:
        self.rooms: list[int] = []
        self.most: list[int] = []

    def attend_packed(self, *given: Any, **options: Any) -> Tensor:
        self.rooms.append(len(given[3].sequences))
        self.most.append(given[3].most)
        return super().attend_packed(*given, **options)


def test_kernels_are_told_the_queries_of_the_largest_sequence_whatever_a_batch_is_rounded_up_to() -> None:
    """By them they cut trees into tiles: of smaller ones a sequence needs several, and its keys are read as often.

    Small trees behind large ones keep the tiles of those for a while, so that what is mixed needs few recordings.
    """
    backend = NotesBatches()
    executor = DeviceExecutor(TapedBackend(backend), CPU, TapeRecorder())
    for slot in range(5):
        executor.cache.open(slot, 200)
    small = [*[([1] * 5, 8)] * PATIENCE, ([1] * 5, 1)]
    for counts, most in ([5] * 5, 8), ([24, 1, 1], 32), *small, ([24, 1, 1], 32), ([9, 9, 8], 32), ([3], 4):
        trees = {slot: TokenTree(np.arange(n), np.arange(-1, n - 1), np.zeros(n)) for slot, n in enumerate(counts)}
        inputs = executor.inputs({slot: (tree, 0) for slot, tree in trees.items()})
        executor.walk(inputs, partial(attended, executor.cache), "attended", [*trees], frozenset())
        assert backend.most[-1] == most  # also of what is repeated, which was recorded with as many


def test_small_batches_that_stay_get_no_room_for_the_large_one_before_them() -> None:
    """More is sent for a larger one. A single pass over few sequences is no reason to record all anew."""
    backend = NotesBatches()
    executor = DeviceExecutor(backend, CPU)
    tree = TokenTree([1, 2], [-1, 0], [0.0, 0.0])
    for slot in range(20):
        executor.cache.open(slot, 200)

    def rooms(*slots: int) -> list[int]:
        backend.rooms.clear()
        inputs = executor.inputs(dict.fromkeys(slots, (tree, 0)))
        executor.walk(inputs, partial(attended, executor.cache), "attended", slots, frozenset())
        return backend.rooms

    assert rooms(7) == [1]  # and not for seven others
    assert rooms(*range(20)) == [64]
    for _ in range(PATIENCE):
        assert rooms(3, 19) == [64]
    assert rooms(19, 3) == rooms(5) == [4]
    assert rooms(*range(20)) == [64]
    assert executor.cache.lengths[:4] == [2, 2, 2, 2 + PATIENCE + 1]


def test_a_text_that_takes_all_its_room_needs_no_other_buffers() -> None:
    executor, recorder = recorded()
    executor.cache.open(0, 2 * PAGE_ROWS)
    executor.cache.stage_prompts([0], [2 * PAGE_ROWS - 3])
    executor.cache.lengths[0] = 2 * PAGE_ROWS - 3
    before = executor.cache.reallocations
    for _ in range(3):
        tree = TokenTree([1], [-1], [0.0])
        executor.walk(executor.inputs({0: (tree, 0)}), partial(attended, executor.cache), "attended", [0], frozenset())
    assert executor.cache.lengths == [2 * PAGE_ROWS]
    assert (executor.cache.reallocations, recorder.recorded) == (before, 1)


def attended(cache: KeyValueCache, view: TreeView) -> tuple[Tensor]:
    """States of a model of one layer, to whose attention nobody listens."""
    states = STATES[view.ids]
    keys, values = cache.update(states[None, None], states[None, None], 0)
    view.attention.attend(states[None, None], keys, values, 1.0)
    return (states,)


def test_what_came_last_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MOST_RECORDED", 2)
    executor, recorder = recorded()
    rows = {size: torch.zeros(size, 3) for size in (1, 2, 4)}
    for size, count in ((1, 1), (2, 2), (1, 2), (4, 3), (1, 3), (2, 4)):
        executor.call("sign", torch.neg, rows[size])
        assert recorder.recorded == count


def test_results_of_one_kind_share_their_rows() -> None:
    results = SharedResults()
    one, (two, none) = results.copied((torch.ones(3, 2), (torch.ones(2), None)))
    (other,) = results.copied((2 * torch.ones(5, 2),))
    assert none is None
    assert one.data_ptr() == other.data_ptr() != two.data_ptr()
    assert other.tolist() == [[2, 2]] * 5
    first, second = results.copied((torch.zeros(1, 2), torch.ones(1, 2)))
    assert (first.tolist(), second.tolist()) == ([[0, 0]], [[1, 1]])  # of one pass they do not
    assert results.moves == 0
    large = results.copied(torch.ones(FEWEST_ROWS + 1, 2))
    assert results.moves == 1
    assert results.copied(torch.zeros(2, 2)).data_ptr() == large.data_ptr()


def test_recordings_that_write_to_memory_of_before_are_dropped() -> None:
    executor, recorder = recorded()
    for size in (3, 2 * FEWEST_ROWS):
        executor.call("sign", torch.neg, torch.zeros(size, 3))
    assert len(recorder.alive) == 1
    assert recorder.retained == 2 * FEWEST_ROWS * 3 * 4


def test_what_was_recorded_before_a_failure_is_given_up() -> None:
    executor, recorder = recorded()
    executor.call("sign", torch.neg, torch.ones(3, 2))
    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        executor.call("asks", lambda own: own * float(own.max()), torch.ones(3, 2))
    assert (len(recorder.alive), recorder.retained) == (0, 0)
    assert executor.call("sign", torch.neg, torch.ones(3, 2)).tolist() == [[-1, -1]] * 3
