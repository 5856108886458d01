"""The key-value cache against a list of rows, under random sequences of passes and commits."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.runtime.cache import TreeCache

LAYERS = {0: (2, 3, 3), 3: (1, 4, 2), 7: (3, 1, 5)}
"""By the model's own number, with gaps: heads, size of the keys' heads, size of the values' heads."""


@pytest.fixture(autouse=True, scope="module")
def _poisoned_buffers():
    """Memory that nobody wrote to holds NaN, so a row that is forgotten is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)


@attrs.define
class Naive:
    """What the cache must hold: by slot the numbers of its committed rows and of its tree's rows."""

    committed: dict[int, list[int]] = attrs.field(factory=dict)
    tree: dict[int, list[int]] = attrs.field(factory=dict)

    def expected(self, slot):
        return self.committed[slot] + self.tree[slot]

    def open(self, slot):
        self.committed[slot], self.tree[slot] = [], []

    def close(self, slot):
        del self.committed[slot], self.tree[slot]


def content(rows, layer, which):
    """The keys (`which` 0) or values (1) of rows, each known by its number: shape `(heads, rows, head_dim)`."""
    heads, size = LAYERS[layer][0], LAYERS[layer][1 + which]
    cells = torch.arange(heads * size, dtype=torch.float32).reshape(heads, 1, size) / 64
    return torch.tensor(rows, dtype=torch.float32).reshape(1, -1, 1) + 1000 * layer + 0.5 * which + cells


def tensors(batches, layer):
    """Keys and values of a pass over these batches of rows, shape `(batches, heads, rows, head_dim)`."""
    return [torch.stack([content(rows, layer, which) for rows in batches]) for which in (0, 1)]


def write(cache, new):
    """One pass over trees that writes the rows `new[slot]` in all layers; what it got back."""
    cache.stage([len(new.get(slot, [])) for slot in range(len(cache.lengths))])
    flat = [row for slot in sorted(new) for row in new[slot]]
    return {layer: cache.update(*tensors([flat], layer), layer) for layer in LAYERS}


def staged(cache, new):
    """That pass is over."""
    cache.staged_now([len(new.get(slot, [])) for slot in range(len(cache.lengths))])


def write_prompts(cache, new):
    """One pass over prompts that writes the rows `new[slot]`; what it got back."""
    longest = max(map(len, new.values()))
    padded = [own + [float("inf")] * (longest - len(own)) for own in new.values()]  # padding must never be read
    cache.stage_prompts([*new], [*map(len, new.values())])
    returned = {layer: cache.update(*tensors(padded, layer), layer) for layer in LAYERS}
    for slot, own in new.items():
        cache.lengths[slot] += len(own)
    return returned


def check(naive, returned, places):
    """Every row of every slot is where it belongs, in every layer; `places` says where a slot is in what came back."""
    for layer, buffers in returned.items():
        for which, buffer in enumerate(buffers):
            for slot, place in places.items():
                expected = naive.expected(slot)
                assert torch.equal(buffer[place, :, : len(expected)], content(expected, layer, which))


class Trial:
    """A cache and what it must hold, as sequences come and go."""

    def __init__(self, data):
        self.data = data
        self.cache, self.naive = TreeCache(), Naive()
        self.numbers = iter(range(1, 10**6))

    def draw(self, strategy):
        return self.data.draw(strategy)

    def rows(self, count):
        return [next(self.numbers) for _ in range(count)]

    def open(self, slots):
        """These slots are opened, and their prompts are read, in one pass or each by itself, in parts or at once."""
        for slot in slots:
            self.cache.open(slot, self.draw(st.integers(1, 40)))
            self.naive.open(slot)
        texts = {slot: self.rows(self.draw(st.integers(0, 5))) for slot in slots}
        together, part = self.draw(st.booleans()), self.draw(st.sampled_from([2, 6]))
        for start in range(0, 6, part):
            behind = {slot: text[start : start + part] for slot, text in texts.items() if len(text) > start}
            for group in [behind] if together and behind else [{slot: own} for slot, own in behind.items()]:
                returned = write_prompts(self.cache, group)
                for slot, own in group.items():
                    self.naive.committed[slot] += own
                assert all(buffer.shape[0] == len(group) for pair in returned.values() for buffer in pair)
                check(self.naive, returned, {slot: at for at, slot in enumerate(group)})

    def close(self, slots):
        for slot in slots:
            self.cache.close(slot)
            self.naive.close(slot)

    def passes(self):
        """A round of some slots: a few passes over their trees, and then what is kept of them."""
        slots = sorted(self.naive.tree)
        for _ in range(self.draw(st.integers(0, 3))):
            counts = st.lists(st.integers(0, 4), min_size=len(slots), max_size=len(slots)).filter(any)
            new = {slot: self.rows(count) for slot, count in zip(slots, self.draw(counts), strict=True) if count}
            returned = write(self.cache, new)
            for slot, own in new.items():
                self.naive.tree[slot] += own
            assert all(buffer.shape[0] == len(self.cache.lengths) for pair in returned.values() for buffer in pair)
            check(self.naive, returned, {slot: slot for slot in slots})
            staged(self.cache, new)
        paths = {}
        for slot in slots:
            count = len(self.naive.tree[slot])
            if count or self.draw(st.booleans()):  # who took no part may be among them
                nodes = st.lists(st.integers(0, max(count - 1, 0)), unique=True, max_size=count)
                paths[slot] = np.array(sorted(self.draw(nodes)), dtype=np.int64)
        self.cache.commit(paths)
        for slot, path in paths.items():
            self.naive.committed[slot] += [self.naive.tree[slot][node] for node in path]
            self.naive.tree[slot] = []
        held = self.naive.committed
        assert self.cache.lengths == [len(held.get(slot, [])) for slot in range(len(self.cache.lengths))]
        assert self.cache.staged == [0] * len(self.cache.lengths)
        assert self.cache.get_seq_length() == max(self.cache.lengths)


SLOTS = st.sampled_from([(0,), (0, 1, 2), (4, 1), (3,)])


@settings(deadline=None)
@given(st.data())
def test_the_cache_holds_the_rows_that_a_list_would_hold(data):
    trial = Trial(data)
    for slots in data.draw(st.lists(SLOTS, min_size=1, max_size=3)):  # the same cache again, for other sequences
        trial.open(slots)
        for _ in range(data.draw(st.integers(0, 4))):
            trial.passes()
            leaving, joining = (
                data.draw(st.lists(st.sampled_from(of), unique=True, max_size=2)) for of in (slots, range(6))
            )
            trial.close(slot for slot in leaving if slot in trial.naive.tree)
            trial.open([slot for slot in joining if slot not in trial.naive.tree or data.draw(st.booleans())])
            if not trial.naive.tree:
                trial.open(slots)
        new = {slot: trial.rows(1) for slot in trial.naive.tree}
        returned = write(trial.cache, new)
        trial.naive.tree = new
        check(trial.naive, returned, {slot: slot for slot in new})
        trial.close([*new])


def opened(*slots, room=16):
    cache = TreeCache()
    for slot in slots:
        cache.open(slot, room)
    return cache


def restarted(cache, *slots, room=16):
    """All sequences leave, and others come to these slots."""
    for slot in range(len(cache.lengths)):
        cache.close(slot)
    for slot in slots:
        cache.open(slot, room)
    return write(cache, {slot: [9] for slot in slots})[3][0]


def test_growing_past_the_room_keeps_what_is_there():
    cache = opened(0, room=4)
    naive = Naive({0: [1, 2, 3]}, {0: []})
    check(naive, write_prompts(cache, naive.committed), {0: 0})
    before = cache.nbytes
    naive.tree = {0: [4, 5, 6, 7, 8]}
    check(naive, write(cache, naive.tree), {0: 0})
    assert cache.nbytes >= 2 * before


def test_a_slot_that_joins_with_more_room_than_there_is_moves_nobodys_rows():
    cache = opened(1, room=4)
    naive = Naive({1: [1, 2, 3]}, {1: []})
    write_prompts(cache, naive.committed)
    cache.open(3, 40)
    naive.open(3)
    naive.tree = {1: [4], 3: [5, 6]}
    returned = write(cache, naive.tree)
    check(naive, returned, {1: 1, 3: 3})
    assert returned[0][0].shape[0] == 4
    assert cache.capacity == 40


def test_committing_the_first_rows_moves_nothing():
    cache = opened(0, room=8)
    keys, _ = write(cache, {0: [1, 2, 3]})[0]
    cache.staged_now([3])
    version = keys._version
    cache.commit({0: np.array([0, 1])})
    assert keys._version == version
    assert (cache.lengths, cache.staged) == ([2], [0])


def test_committing_some_slots_leaves_the_trees_of_the_others():
    cache = opened(0, 1, 2)
    staged(cache, {0: [1, 2], 2: [3, 4, 5]})
    cache.committed({2: 2})
    assert (cache.lengths, cache.staged) == ([0, 0, 2], [2, 0, 0])


def test_a_slot_that_is_opened_again_has_nothing_left_over_and_the_same_memory():
    cache = opened(0, 1)
    first = write(cache, {0: [1, 2], 1: [3]})[3][0]
    cache.staged_now([2, 1])
    cache.commit({0: np.array([0, 1]), 1: np.array([0])})
    write(cache, {1: [4]})
    cache.staged_now([0, 1])
    cache.open(1, 10)  # its sequence has not even been closed
    assert (cache.lengths, cache.staged, cache.get_seq_length()) == ([2, 0], [0, 0], 2)
    naive = Naive({0: [1, 2], 1: []}, {0: [5], 1: [6]})
    returned = write(cache, naive.tree)
    check(naive, returned, {0: 0, 1: 1})
    assert returned[3][0].data_ptr() == first.data_ptr()


@pytest.mark.parametrize("slots", [(0,), (0, 1), (0, 1, 2, 3, 4), (4, 2)])
def test_sequences_of_the_same_slots_take_the_same_memory_again(slots):
    """Where passes are recorded, other memory would mean to record all of them anew."""
    cache = TreeCache()
    first, before = restarted(cache, *slots).data_ptr(), cache.reallocations
    for room in (16, 9, 16):
        assert restarted(cache, *slots, room=room).data_ptr() == first
    assert cache.reallocations == before


@pytest.mark.parametrize(("slots", "room"), [((0, 1, 2, 3), 16), ((0, 1), 17)])
def test_more_slots_or_rows_than_there_are_take_other_memory_and_no_more_than_is_asked_for(slots, room):
    cache = TreeCache()
    restarted(cache, 0, 1, room=16)
    before = cache.reallocations
    assert restarted(cache, *slots, room=room).shape == (len(slots), 1, room, 4)
    assert cache.reallocations > before


@pytest.mark.parametrize(("slots", "room"), [((0,), 16), ((0, 1, 2), 3)])
def test_memory_that_was_much_too_large_for_all_that_came_is_given_up(slots, room):
    cache = TreeCache()
    large = restarted(cache, 0, 1, 2, room=16).shape
    assert restarted(cache, *slots, room=room).shape == large  # more may come
    assert restarted(cache, *slots, room=room).shape == (len(slots), 1, room, 4)


def test_a_long_text_after_many_short_ones_does_not_get_as_many_slots():
    cache = TreeCache()
    restarted(cache, *range(8), room=4)
    assert restarted(cache, 0, room=64).shape[::2] == (1, 64)


def test_many_short_texts_after_a_long_one_do_not_each_get_its_rows():
    cache = TreeCache()
    restarted(cache, 0, room=64)
    for slot in range(8):
        cache.open(slot, 4)
        write(cache, {slot: [1, 2]})
        cache.commit({slot: np.array([0, 1])})
    keys = cache.buffers()[0]
    assert keys.shape[::2] == (8, 4)
    torch.testing.assert_close(keys[3, :, :2], content([1, 2], 0, 0))


def test_an_unwritten_row_is_nan_and_not_padding():
    cache = opened(0, 1, 2, room=6)
    keys, _ = write(cache, {0: [1, 2, 3], 1: [4]})[0]
    assert keys[1, :, 1:].isnan().all()
    assert keys[2].isnan().all()


@pytest.mark.parametrize("slot", [0, 1, 4])
def test_a_slot_begins_with_the_rows_of_another_which_stays_as_it_is(slot):
    cache = TreeCache()
    cache.open(1, 8)
    with torch.inference_mode():  # as in passes
        write(cache, {1: [10, 11, 12, 13]})
        cache.commit({1: np.array([0, 1, 3])})
    assert cache.resume(slot, 9, 1, 2) == 2
    with torch.inference_mode():
        seen = write(cache, {slot: [20, 21]})
    for layer in LAYERS:
        for which in (0, 1):
            own = seen[layer][which][slot]
            torch.testing.assert_close(own[:, :4], content([10, 11, 20, 21], layer, which))
            if slot != 1:
                torch.testing.assert_close(seen[layer][which][1][:, :3], content([10, 11, 13], layer, which))
    assert cache.lengths[slot] == 2
    assert cache.lengths[1] == (2 if slot == 1 else 3)
    assert cache.resume(1, 9, 1, 99) == cache.lengths[1]  # as many as there are


class Interrupted(dict):
    """Buffers that Ctrl-C comes upon as soon as they are given up."""

    def clear(self):
        super().clear()
        raise KeyboardInterrupt


@pytest.mark.parametrize("give_up", [lambda cache: cache.open(0, 64), lambda cache: cache.make_room(64)])
def test_buffers_that_are_given_up_count_as_made_anew_whatever_interrupts_that(give_up):
    cache = TreeCache()
    cache.open(0, 8)
    cache.make_room(8)
    write(cache, {0: [1, 2]})
    before = cache.reallocations
    cache._keys = Interrupted(cache._keys)
    cache.close(0)
    with pytest.raises(KeyboardInterrupt):
        give_up(cache)
    assert cache.reallocations > before
    cache._keys = {**cache._keys}
    cache.open(0, 4)
    write(cache, {0: [1, 2]})
    assert all(len(buffer[0, 0]) >= 4 for buffer in cache.buffers())
