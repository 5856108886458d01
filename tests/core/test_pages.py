"""The cache in pages: against a list of rows, against one in one piece, and what it takes."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core import Bounds, Request, load
from talon_core.engine.engine import Engine
from talon_core.hf.target import HFTarget
from talon_core.runtime import device
from talon_core.runtime.cache import TreeCache
from talon_core.runtime.pages import PADDING, PAGE_ROWS, PagedCache
from talon_core.target import rows_of_longest
from talon_core.testing.plain_device import PlainDevice
from talon_strategies import Eagle2, Match
from talon_tests.tiny_models import tiny_model

HEADS, SIZES = 2, (3, 5)
"""Heads, and the sizes of those of keys and of values."""

LAYERS = (0, 3)


@pytest.fixture(autouse=True, scope="module")
def _poisoned_buffers():
    """Memory that nobody wrote to holds NaN, so a row that is forgotten is seen; and all is done as in passes."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    with torch.inference_mode():
        yield
    torch.use_deterministic_algorithms(before)


def content(rows, layer, which):
    """The keys (`which` 0) or values (1) of rows, each known by its number: shape `(heads, rows, size)`."""
    cells = torch.arange(HEADS * SIZES[which], dtype=torch.float32).reshape(HEADS, 1, -1) / 64
    return torch.tensor(rows, dtype=torch.float32).reshape(1, -1, 1) + 10_000 * layer + 0.5 * which + cells


def tensors(batches, layer):
    """Keys and values of a pass over these batches of rows, shape `(batches, heads, rows, size)`."""
    return [torch.stack([content(rows, layer, which) for rows in batches]) for which in (0, 1)]


def held(cache, slot, layer, which, count):
    """The first rows of a slot, found by its pages."""
    buffer = cache.layer(layer, *tensors([[0]], layer))[which]
    rows = np.arange(count)
    pages = np.array(cache.pages[slot], dtype=np.int64)[rows // PAGE_ROWS]
    return buffer[pages, :, rows % PAGE_ROWS].transpose(0, 1)


def read(cache, new):
    """One pass over prompts that writes the rows `new[slot]`; checks what comes back, as far as it is no padding."""
    starts = {slot: cache.lengths[slot] for slot in new}
    longest = max(map(len, new.values()))
    padded = [[*own, *[torch.inf] * (longest - len(own))] for own in new.values()]
    cache.stage_prompts([*new], [*map(len, new.values())])
    for layer in LAYERS:
        returned = cache.update(*tensors(padded, layer), layer)
        for which, seen in enumerate(returned):
            assert seen.shape == (len(new), HEADS, max(starts.values()) + longest, SIZES[which])
            assert not seen.isnan().any()  # what is padding is masked by a weight of 0, and 0 times NaN is NaN
            for place, (slot, own) in enumerate(new.items()):
                end = starts[slot] + len(own)
                assert torch.equal(seen[place, :, :end], held(cache, slot, layer, which, end))
    for slot, own in new.items():
        cache.lengths[slot] += len(own)


def write(cache, new):
    """One pass over trees that writes the rows `new[slot]`, as a device does, and is over."""
    counts = [len(new.get(slot, ())) for slot in range(len(cache.lengths))]
    cache.make_room_for(counts)
    slots, rows = cache.next_rows(counts)
    taking = sorted({*slots.tolist()})
    table = cache.table(taking)
    pages = table[np.searchsorted(taking, slots), rows // PAGE_ROWS].astype(np.int64)
    cache.stage_at(torch.from_numpy(pages), torch.from_numpy(rows % PAGE_ROWS))
    for layer in LAYERS:
        cache.update(*tensors([[row for slot in taking for row in new[slot]]], layer), layer)
    cache.staged_now(counts)


def test_a_layer_that_writes_itself_is_told_where_a_pass_over_trees_writes():
    cache, here = PagedCache(), torch.device("cpu")
    assert cache.places(here) is None
    cache.open(0, 100)
    cache.stage_prompts([0], [70])
    assert cache.places(here) is None
    for layer in LAYERS:
        cache.update(*tensors([[*range(70)]], layer), layer)
    cache.lengths[0] = 70
    cache.make_room_for([2])
    pages, rows = torch.tensor(cache.pages[0][1:] * 2), torch.tensor([6, 7])
    cache.stage_at(pages, rows)
    told = cache.places(here)
    assert told is not None
    assert all(own is other for own, other in zip(told, (pages, rows), strict=True))
    keys, values = tensors([[70, 71]], 0)
    for buffer, new in zip(cache.layer(0, keys, values), (keys, values), strict=True):
        buffer[told[0], :, told[1]] = new[0].transpose(0, 1)
    cache.staged_now([2])
    assert torch.equal(held(cache, 0, 0, 0, 72), content([*range(72)], 0, 0))
    cache.stage_prompts([0], [1])
    assert cache.places(here) is None


@attrs.define
class Trial:
    """A cache and the rows that its slots must hold, committed and staged."""

    data: st.DataObject
    cache: PagedCache
    rows: dict[int, list[int]] = attrs.field(factory=dict)
    next: int = 1

    def made(self, count):
        self.next += count
        return [*range(self.next - count, self.next)]

    def open(self, slots):
        texts = {}
        for slot in slots:
            self.cache.open(slot, self.data.draw(st.integers(0, 200)))
            self.rows[slot] = []
            texts[slot] = self.made(self.data.draw(st.integers(0, 150)))
        part = self.data.draw(st.sampled_from([50, 64, 200]))
        for start in range(0, 150, part):
            new = {slot: text[start : start + part] for slot, text in texts.items() if len(text) > start}
            if new:
                read(self.cache, new)
                for slot, own in new.items():
                    self.rows[slot] += own

    def resume(self, slot):
        source = self.data.draw(st.sampled_from(sorted(self.rows)))
        length = self.data.draw(st.integers(0, 200))
        taken = self.cache.resume(slot, self.data.draw(st.integers(0, 200)), source, length)
        assert taken == min(length, len(self.rows[source]))
        self.rows[slot] = self.rows[source][:taken]

    def grow(self):
        counts = {slot: self.data.draw(st.integers(0, 70)) for slot in self.rows}
        new = {slot: self.made(count) for slot, count in counts.items() if count}
        if new:
            write(self.cache, new)
        for slot in [*self.rows]:
            staged = new.get(slot, [])
            kept = self.data.draw(st.integers(0, len(staged)))
            every = self.rows[slot] + staged
            for layer in LAYERS if every else ():
                for which in (0, 1):
                    assert torch.equal(held(self.cache, slot, layer, which, len(every)), content(every, layer, which))
            self.cache.committed({slot: kept})
            self.rows[slot] += staged[:kept]

    def close(self, slot):
        self.cache.close(slot)
        del self.rows[slot]

    def check(self):
        """No page is in two places, none is lost, and each slot has its rows."""
        taken = [page for pages in self.cache.pages.values() for page in pages]
        assert self.cache.pages.keys() == self.rows.keys()
        assert PADDING not in taken
        assert len({*taken}) == len(taken)
        buffers = self.cache.buffers()
        if buffers:
            assert len(taken) + self.cache.free + 1 == len(buffers[0])
            assert max(taken, default=0) < len(buffers[0])
        for slot, rows in self.rows.items():
            assert self.cache.lengths[slot] == len(rows)
            assert len(self.cache.pages[slot]) <= self.cache.width
            for layer in LAYERS if rows else ():
                for which in (0, 1):
                    assert torch.equal(held(self.cache, slot, layer, which, len(rows)), content(rows, layer, which))


def test_a_slot_with_pages_and_no_rows_has_pages_when_the_pool_has_grown():
    cache = PagedCache()
    for slot in (0, 1):
        cache.open(slot, 10)
    write(cache, {0: [1, 2, 3]})
    cache.committed({0: 0})
    assert len(cache.pages[0]) == 1
    before = cache.reallocations
    write(cache, {0: [4, 5], 1: [*range(10, 400)]})
    assert cache.reallocations > before
    assert PADDING not in cache.pages[0]
    assert not {*cache.pages[0]} & {*cache.pages[1]}
    for slot, rows in ((0, [4, 5]), (1, [*range(10, 400)])):
        for layer in LAYERS:
            for which in (0, 1):
                assert torch.equal(held(cache, slot, layer, which, len(rows)), content(rows, layer, which))


@pytest.mark.parametrize("spare", [0, 10**9])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_slots_that_come_grow_and_go_hold_their_rows_and_share_no_page(spare, data):
    trial = Trial(data, PagedCache(lambda: spare))
    slots = st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=3)
    for _ in range(data.draw(st.integers(1, 6))):
        what = data.draw(st.sampled_from(["open", "resume", "grow", "close"])) if trial.rows else "open"
        if what == "open":
            trial.open(data.draw(slots))
        elif what == "resume":
            trial.resume(data.draw(st.integers(0, 5)))
        elif what == "grow":
            trial.grow()
        else:
            trial.close(data.draw(st.sampled_from(sorted(trial.rows))))
        trial.check()
    for slot in [*trial.rows]:
        trial.close(slot)
    trial.check()
    buffers = trial.cache.buffers()
    assert trial.cache.free + 1 == (len(buffers[0]) if buffers else trial.cache.free + 1)


LLAMA_3_8B = {"layers": 32, "kv_heads": 8, "head_dim": 128}


def bytes_of(cache, rooms):
    """What a cache takes in bfloat16 for Llama 3 of 8 billion parameters, when all rooms are filled."""
    shape = (LLAMA_3_8B["kv_heads"], LLAMA_3_8B["head_dim"])
    for slot, room in rooms.items():
        cache.open(slot, room)
    for slot, room in rooms.items():
        cache.stage_prompts([slot], [room])
        new = torch.empty((1, shape[0], room, shape[1]), dtype=torch.bfloat16, device="meta")
        for layer in range(LLAMA_3_8B["layers"]):
            cache.update(new, new, layer)
        cache.lengths[slot] += room
    return cache.nbytes


def memory_for(buffers, patch):
    """Let there be memory for so many buffers, and for no more."""
    left = iter(range(buffers))

    def new_empty(_, shape):
        if next(left, None) is None:
            raise torch.OutOfMemoryError
        return torch.empty(shape)

    patch.setattr(torch.Tensor, "new_empty", new_empty)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("kind", [PagedCache, TreeCache])
def test_buffers_that_memory_is_too_short_for_lose_nothing_and_are_known_to_be_others(kind, at, monkeypatch):
    """Some layers have others then, whose addresses recordings and whoever moves rows do not have."""
    cache = kind()
    cache.open(0, 5)
    cache.stage_prompts([0], [5])
    for layer in LAYERS:
        cache.update(*tensors([[1, 2, 3, 4, 5]], layer), layer)
    cache.lengths[0] = 5
    before, known = cache.buffers(), cache.reallocations
    with monkeypatch.context() as patch:
        memory_for(at, patch)
        with pytest.raises(torch.OutOfMemoryError):
            cache.make_room_for([3 * PAGE_ROWS])
    assert sum(one is not other for one, other in zip(before, cache.buffers(), strict=True)) == at
    assert cache.reallocations > known
    if kind is PagedCache:  # a text that has room goes on
        assert len({len(one) for one in cache.buffers()}) == 1
    cache.make_room_for([3 * PAGE_ROWS])
    for layer in LAYERS:
        for which, buffer in enumerate(cache.layer(layer, *tensors([[0]], layer))):
            page = cache.pages[0][0] if kind is PagedCache else 0
            assert torch.equal(buffer[page, :, :5], content([1, 2, 3, 4, 5], layer, which))


def test_a_layer_that_memory_is_too_short_for_has_no_keys_without_values(monkeypatch):
    cache = PagedCache()
    cache.open(0, 5)
    cache.make_room_for([5])
    keys, values = tensors([[0]], 0)
    with monkeypatch.context() as patch:
        memory_for(1, patch)
        with pytest.raises(torch.OutOfMemoryError):
            cache.layer(0, keys, values)
    assert [one.shape[3] for one in cache.layer(0, keys, values)] == [*SIZES]


def test_a_long_prompt_takes_no_room_in_the_slots_beside_it():
    """Each row takes 131,072 bytes; 64 sequences of 300 tokens and one of 32,768 are 51,968 rows."""
    rooms = dict.fromkeys(range(64), 300) | {64: 32_768}
    row = 2 * 2 * LLAMA_3_8B["layers"] * LLAMA_3_8B["kv_heads"] * LLAMA_3_8B["head_dim"]
    taken = bytes_of(PagedCache(), rooms)
    assert taken == row * (PagedCache().rows_for(rooms) + PAGE_ROWS)  # and a page for padding
    assert taken <= row * (sum(rooms.values()) + PAGE_ROWS * (len(rooms) + 1))
    apart = bytes_of(TreeCache(), rooms)
    assert apart == row * rows_of_longest(rooms)
    assert (round(taken / 1e9, 1), round(apart / 1e9)) == (7.0, 279)  # as docs/kernels.md says


def test_short_sequences_decode_beside_a_long_one_in_the_rows_that_are_allowed(monkeypatch):
    """The bound is that of the engine; in one piece, each slot would have as many rows as the longest has."""
    monkeypatch.setattr(device, "_spare_bytes", lambda _: 0)
    with torch.inference_mode(False):
        model = tiny_model("llama")
    target = HFTarget(model, PlainDevice())
    assert isinstance(target.runner.cache, PagedCache)
    rows = 256 + 12 * PAGE_ROWS
    engine = Engine(target, Match(), rows=rows, keep=False)
    prompts = [np.arange(200) % 50, *(np.arange(3) + first for first in range(12))]
    assert target.rows(dict.fromkeys(range(2), 256)) < rows < rows_of_longest(dict.fromkeys(range(13), 209))
    sequences = [engine.submit(Request(prompt, 8)) for prompt in prompts]
    engine.step()
    assert all(one.is_read for one in sequences)  # at once
    assert target.runner.cache.nbytes <= (rows + PAGE_ROWS) * row_bytes(model)
    while not all(one.finished for one in sequences):
        engine.step()
    assert target.runner.cache.nbytes <= (rows + PAGE_ROWS) * row_bytes(model)
    usual = load(model, policy=None, attention="sdpa")
    for prompt, one in zip(prompts, sequences, strict=True):
        assert one.token_ids == usual.generate(prompt.tolist(), max_new_tokens=8).token_ids
    waiting = engine.submit(Request(np.arange(200) % 50, 8))
    others = [engine.submit(Request(np.arange(200) % 50, 8)) for _ in range(4)]
    engine.step()
    assert [one.is_read for one in (waiting, *others)] == [True] * 4 + [False]


@pytest.mark.parametrize("drafter", ["draft-model:skip=1", "conflayers"])
def test_no_tree_takes_more_rows_than_are_allowed(drafter):
    """Of `conflayers` not one that is drafted either: it drafts in the target's cache. A draft model has its own."""
    policy = Eagle2(budget=300, depth=2, top_k=20)
    assert policy.draft_budget > policy.budget
    parts = {"drafter": drafter, "policy": policy, "attention": "sdpa"}
    room = 5 + 8 + (policy.draft_budget if drafter == "conflayers" else policy.budget)
    of_both = load(tiny_model("llama"), **parts).engine.parts.rows(dict.fromkeys(range(2), room))
    assert (of_both > 2 * room) == (drafter != "conflayers")
    decoder = load(tiny_model("llama"), **parts, bounds=Bounds(rows=of_both))
    results = decoder.generate([[5, 6, 5, 6, 5], [7, 8, 9, 7, 8], [1, 2, 3, 4, 5]], max_new_tokens=8)
    assert max(len(one.tree) for result in results for one in result.rounds) == 300
    keys = decoder.target.runner.cache.buffers()[0]
    assert keys.shape[0] * keys.shape[2] == 2 * room


def row_bytes(model):
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize


def restarted(cache, *rooms):
    """All sequences leave, others come and write a row each; how many pages there are."""
    for slot in range(len(cache.lengths)):
        cache.close(slot)
    for slot, room in enumerate(rooms):
        cache.open(slot, room)
    write(cache, {slot: [9] for slot in range(len(rooms))})
    return len(cache.buffers()[0])


def pages(count):
    return count * PAGE_ROWS


def test_sequences_that_need_no_more_pages_take_the_same_memory_again():
    """Where passes are recorded, other memory would mean to record all of them anew."""
    cache = PagedCache()
    assert restarted(cache, pages(2), pages(5)) == 1 + 7
    first, before = cache.buffers()[0].data_ptr(), cache.reallocations
    for rooms in ((pages(7),), (pages(1), pages(1), pages(2)), (pages(5), pages(2))):
        assert restarted(cache, *rooms) == 1 + 7
    assert cache.buffers()[0].data_ptr() == first
    assert cache.reallocations == before


def test_a_pool_that_was_much_too_large_for_all_that_came_is_given_up():
    cache = PagedCache()
    assert restarted(cache, pages(20)) == 21
    assert restarted(cache, pages(3)) == 21  # more may come
    assert restarted(cache, pages(3)) == 4
    assert restarted(cache, pages(1)) == 4


def test_what_may_be_spared_stays_and_is_made_larger_than_asked_for():
    spare = [10**9]
    cache = PagedCache(lambda: spare[0])
    assert restarted(cache, pages(5)) == 6  # of the first ones nobody knows what they take
    page = cache.nbytes // 6
    spare[0] = 16 * page
    assert restarted(cache, *[pages(2)] * 5) == 16
    before = cache.reallocations
    for rooms in ([1], [1], [15], [2, 3]):
        assert restarted(cache, *map(pages, rooms)) == 16
    assert cache.reallocations == before
    assert restarted(cache, pages(16)) == 17  # a size that is one of few would be too large
    spare[0] = 0
    assert [restarted(cache, pages(1)) for _ in range(3)] == [17, 2, 2]


def test_a_text_that_is_longer_than_was_thought_gets_more_than_the_next_row():
    cache = PagedCache()
    assert restarted(cache, pages(2), pages(1)) == 4
    before = cache.reallocations
    for _ in range(PAGE_ROWS + 1):
        write(cache, {0: [1], 1: [1, 1]})
        cache.committed({0: 1, 1: 2})
    assert len(cache.pages[1]) == 3
    assert cache.reallocations <= before + 2


def test_tables_have_room_for_few_numbers_of_pages():
    cache = PagedCache()
    widths = []
    for rows in (1, 900, 1024, 1025, 3000, 10):
        restarted(cache, rows)
        widths.append((cache.width, cache.table([0]).shape))
    assert widths == [(width, (1, width)) for width in (16, 16, 16, 32, 48, 48)]


@pytest.mark.parametrize("slot", [-1, True, 1.5])
def test_what_is_no_slot_is_refused(slot):
    with pytest.raises(ValueError, match="it must be a whole number and at least 0"):
        PagedCache().open(slot, 3)


def test_who_is_not_open_has_no_page():
    cache = PagedCache()
    with pytest.raises(ValueError, match="slot 3"):
        cache.resume(0, 10, 3, 1)
    cache.open(2, 10)
    assert (cache.pages, cache.free, cache.lengths) == ({2: []}, 0, [0, 0, 0])
