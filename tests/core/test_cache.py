"""The key-value cache against a list of rows, under random sequences of passes and commits."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.hf.cache import TreeCache

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
    """What the cache must hold: for each sequence the numbers of its committed rows and of its tree's rows."""

    committed: list[list[int]]
    tree: list[list[int]]

    def expected(self, row):
        return self.committed[row] + self.tree[row]


def content(rows, layer, which):
    """The keys (`which` 0) or values (1) of rows, each known by its number: shape `(heads, rows, head_dim)`."""
    heads, size = LAYERS[layer][0], LAYERS[layer][1 + which]
    cells = torch.arange(heads * size, dtype=torch.float32).reshape(heads, 1, size) / 64
    return torch.tensor(rows, dtype=torch.float32).reshape(1, -1, 1) + 1000 * layer + 0.5 * which + cells


def tensors(batches, layer):
    """Keys and values of a pass over these batches of rows, shape `(batches, heads, rows, head_dim)`."""
    return [torch.stack([content(rows, layer, which) for rows in batches]) for which in (0, 1)]


def write(cache, new):
    """One pass over trees that writes the rows `new[b]` of each sequence in all layers; what it got back."""
    cache.stage([len(rows) for rows in new])
    flat = [row for rows in new for row in rows]
    return {layer: cache.update(*tensors([flat], layer), layer) for layer in LAYERS}


def write_prompts(cache, rows, new):
    """One pass over the prompts of `rows`, which get the rows `new`; what it got back."""
    longest = max(map(len, new))
    padded = [own + [float("inf")] * (longest - len(own)) for own in new]  # padding must never be read
    cache.stage_prompts(rows, longest)
    returned = {layer: cache.update(*tensors(padded, layer), layer) for layer in LAYERS}
    for row, own in zip(rows, new, strict=True):
        cache.lengths[row] += len(own)
    return returned


def check(cache, naive, returned, rows=None):
    """Every row of every sequence of the pass is where it belongs, in every layer."""
    rows = range(len(naive.committed)) if rows is None else rows
    for layer, buffers in returned.items():
        for which, buffer in enumerate(buffers):
            assert buffer.shape[0] == len(rows)
            for at, sequence in enumerate(rows):
                expected = naive.expected(sequence)
                assert torch.equal(buffer[at, :, : len(expected)], content(expected, layer, which))


@st.composite
def runs(draw):
    """A batch's prompts, the room asked for at first, and some rounds: the passes of each, then its paths."""
    batch = draw(st.sampled_from([1, 3]))
    prompts = draw(st.lists(st.integers(0, 5), min_size=batch, max_size=batch))
    together = draw(st.booleans())  # whether prompts run in one pass, and in pieces
    capacity = draw(st.integers(1, 40))
    rounds = []
    for _ in range(draw(st.integers(0, 4))):
        counts = st.lists(st.integers(0, 4), min_size=batch, max_size=batch).filter(any)
        passes = draw(st.lists(counts, max_size=3))
        paths = []
        for row in range(batch):
            staged = sum(each[row] for each in passes)
            nodes = (
                st.lists(st.integers(0, max(staged - 1, 0)), unique=True, max_size=staged) if staged else st.just([])
            )
            paths.append(np.array(sorted(draw(nodes)), dtype=np.int64))
        rounds.append((passes, paths))
    return prompts, together, capacity, rounds


@settings(deadline=None)
@given(st.lists(runs(), min_size=1, max_size=3))
def test_the_cache_holds_the_rows_that_a_list_would_hold(generations):
    cache = TreeCache()
    for prompts, together, capacity, rounds in generations:  # the same cache again, for other batches and lengths
        batch = len(prompts)
        cache.reset(batch, capacity)
        naive = Naive([[] for _ in range(batch)], [[] for _ in range(batch)])
        number = iter(range(1, 10**6))
        texts = [[next(number) for _ in range(length)] for length in prompts]
        for start in range(0, 6, 2 if together else 6):
            behind = [row for row in range(batch) if prompts[row] > start]
            for rows in [behind] if together and behind else [[row] for row in behind]:
                parts = [texts[row][start : start + (2 if together else 6)] for row in rows]
                returned = write_prompts(cache, rows, parts)
                for row, part in zip(rows, parts, strict=True):
                    naive.committed[row] += part
                check(cache, naive, returned, rows)
        for passes, paths in rounds:
            for counts in passes:
                new = [[next(number) for _ in range(count)] for count in counts]
                returned = write(cache, new)
                for row in range(batch):
                    naive.tree[row] += new[row]
                check(cache, naive, returned)
                cache.staged_now(counts)
            cache.commit(paths)
            for row, path in enumerate(paths):
                naive.committed[row] += [naive.tree[row][node] for node in path]
                naive.tree[row] = []
            assert cache.lengths == [len(rows) for rows in naive.committed]
            assert cache.staged == [0] * batch
            assert cache.get_seq_length() == max(cache.lengths)
        naive.tree = [[next(number)] for _ in range(batch)]
        check(cache, naive, write(cache, naive.tree))


def test_growing_past_the_room_keeps_what_is_there():
    cache = TreeCache()
    cache.reset(1, 4)
    naive = Naive([[1, 2, 3]], [[]])
    check(cache, naive, write_prompts(cache, [0], naive.committed), [0])
    before = cache.nbytes
    naive.tree = [[4, 5, 6, 7, 8]]
    check(cache, naive, write(cache, naive.tree))
    assert cache.nbytes >= 2 * before


def test_committing_the_first_rows_moves_nothing():
    cache = TreeCache()
    cache.reset(1, 8)
    keys, _ = write(cache, [[1, 2, 3]])[0]
    cache.staged_now([3])
    version = keys._version
    cache.commit([np.array([0, 1])])
    assert keys._version == version
    assert (cache.lengths, cache.staged) == ([2], [0])


def test_a_reset_forgets_and_takes_the_same_memory_again():
    cache = TreeCache()
    cache.reset(2, 16)
    write(cache, [[1, 2], [3]])
    cache.staged_now([2, 1])
    cache.commit([np.array([0, 1]), np.array([0])])
    first = write(cache, [[4], [5]])[3][0]
    cache.reset(2, 10)
    assert (cache.lengths, cache.staged, cache.get_seq_length()) == ([0, 0], [0, 0], 0)
    assert write(cache, [[6], [7]])[3][0].data_ptr() == first.data_ptr()


@pytest.mark.parametrize(("batch", "capacity"), [(1, 16), (2, 17), (2, 3)])
def test_a_reset_for_another_batch_or_much_more_or_less_room_takes_other_memory(batch, capacity):
    cache = TreeCache()
    cache.reset(2, 16)
    write(cache, [[1], [2]])
    cache.reset(batch, capacity)
    assert cache.nbytes == 0
    keys, values = write(cache, [[1]] * batch)[7]
    assert keys.shape == (batch, 3, capacity, 1)
    assert values.shape == (batch, 3, capacity, 5)


def test_an_unwritten_row_is_nan_and_not_padding():
    cache = TreeCache()
    cache.reset(3, 6)
    keys, _ = write(cache, [[1, 2, 3], [4], []])[0]
    assert keys[1, :, 1:].isnan().all()
    assert keys[2].isnan().all()
