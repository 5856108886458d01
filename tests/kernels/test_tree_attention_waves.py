"""How the work of tree attention is divided: evenly, in pieces of one line, and on the device as on the host."""

from itertools import groupby, pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.attention import TreeLayout
from talon_core.runtime.pages import PAGE_ROWS
from talon_kernels.compiling import MOST_OF_IDEAL
from talon_kernels.tree_attention import cutting
from talon_kernels.tree_attention import waves as waves_of
from talon_kernels.tree_attention.cutting import Blocks, blocks, segments, starts_at
from talon_kernels.tree_attention.waves import least_even, waves

WORK = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=8)


@given(work=WORK, kv_heads=st.integers(1, 4), programs=st.integers(1, 300))
def test_every_tile_of_keys_is_in_one_piece_and_pieces_are_of_one_length(work, kv_heads, programs):
    found = list(segments(work, kv_heads, programs))
    for (kv_head, sequence, tile), own in groupby(found, lambda one: (one.kv_head, one.sequence, one.tile)):
        own = list(own)
        keys = work[sequence][1]
        assert (kv_head, tile) < (kv_heads, work[sequence][0])
        assert own[0].begin == 0
        assert own[-1].end == keys
        assert all(one.end == after.begin for one, after in pairwise(own))
        assert all(one.whole == (len(own) == 1) for one in own)
    assert len({(one.kv_head, one.sequence, one.tile) for one in found}) == kv_heads * sum(tiles for tiles, _ in work)
    lengths = [0] * programs
    for program, own in groupby(found, lambda one: one.program):
        own = list(own)
        lengths[program] = sum(one.end - one.begin for one in own)
        # what others have a part of stands at the ends: there is room for two shares of each program
        assert all(one.whole for one in own[1:-1])
    assert max(lengths) - min(lengths) <= 1
    assert starts_at(programs, sum(lengths), programs) == sum(lengths)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 20)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    programs=st.integers(1, 40),
)
def test_the_device_divides_the_work_as_the_host_says(device, sequences, kv_heads, group, programs):
    """All scores are alike, so a row's total is the number of keys that its share has."""
    kernels = pytest.importorskip("talon_kernels.tree_attention.triton")
    prefixes, counts = zip(*sequences, strict=True)
    trees = tuple(np.full(count, -1) for count in counts)  # roots alone: each sees the prefix and itself
    layout = TreeLayout(np.array(prefixes), trees, np.zeros(len(trees), dtype=np.int64))
    query = torch.zeros(kv_heads * group, layout.queries, 16, device=device)
    key = torch.zeros(len(trees), kv_heads, 180, 16, device=device)
    shares = []

    class Noted:
        def __getitem__(self, grid):
            return lambda _sinks, _result, _outs, _tops, totals, *_, **__: shares.append(totals.cpu())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "merge", Noted())
        kernels.tree_attention_triton(query, key, key, layout.packed(device), scale=1.0, programs=programs)
    if not layout.queries:
        return
    cut = blocks(16, 16, max(counts) * group, torch.float32, "other")
    tiles = [
        (-(-count * group // cut.rows), -(-prefix // cut.keys) + -(-count // cut.keys)) for prefix, count in sequences
    ]
    expected = torch.full_like(shares[0], torch.nan)
    for _, own in groupby(segments(tiles, kv_heads, programs), lambda one: one.program):
        for number, one in enumerate(own):
            if not one.whole:
                expected[2 * one.program + min(number, 1)] = keys_of(one, cut, *sequences[one.sequence], group)
    torch.testing.assert_close(shares[0], expected, equal_nan=True, rtol=0, atol=0)


def keys_of(one, cut, prefix, count, group):
    """How many keys each row of a tile has in a share, `(rows,)`; rows without a query see those of the prefix."""
    own = torch.arange(one.begin, one.end)[:, None] * cut.keys + torch.arange(cut.keys)  # (tiles, keys)
    first = -(-prefix // cut.keys) * cut.keys  # of the tree's keys
    node = (one.tile * cut.rows + torch.arange(cut.rows)) // group
    itself = (own.flatten()[None] == first + node[:, None]) & (node < count)[:, None]
    return (own < prefix).sum() + itself.sum(1)


def test_gpus_are_as_busy_as_can_be():
    """By what was compiled; `python -m talon_kernels.compiling` says it for every GPU."""
    held = {16: 2, 32: 2, 64: 1, 128: 1}
    every = {f"attend bf16 {dim} rows={rows}": count for dim in (64, 128, 192, 256) for rows, count in held.items()}
    for multiprocessors, kind in ((108, "other"), (132, "hopper")):
        found = least_even(multiprocessors, kind, every)
        assert found.multiprocessors == multiprocessors
        assert 1 <= found.of_ideal <= MOST_OF_IDEAL, found
    assert least_even(132, "hopper", {}) is None


def test_of_a_variant_what_is_held_of_it_counts(monkeypatch):
    """That of its group, and for a text alone a plain one; heads of 128 only, as it stands for all that is compiled."""
    monkeypatch.setattr(waves_of, "DIMS", ((128, 128),))
    counted = set()

    def noted(multiprocessors, programs, cut, sequences, kv_heads, group, dims):
        counted.add((group, len(sequences) == 1, cut.rows, programs // multiprocessors))
        return waves_of.Waves(1, 1)

    monkeypatch.setattr(waves_of, "waves", noted)
    held = {"": 5, " plain": 6, " group=7": 7, " group=8": 8}
    least_even(114, "hopper", {f"attend bf16 128 rows=16{way}": count for way, count in held.items()})
    assert counted == {
        *((1, alone, 16, 5) for alone in (True, False)),  # there is none of its own
        *((4, True, 16, 6), (4, False, 16, 5)),
        *((group, alone, 16, group) for group in (7, 8) for alone in (True, False)),
    }


def test_programs_that_come_to_no_whole_wave_are_seen():
    """One more wave, nearly empty, is what the bound is there to find."""
    cut = Blocks(128, 64, 8, 3)
    trees = [(8192, 64)]  # 2064 tiles of keys over 132 multiprocessors
    even, uneven = (waves(132, programs, cut, trees, 8, 4) for programs in (132, 272))
    assert even.took / even.ideal < 1.05
    assert 16 <= even.ideal < 19  # 15.6 to attend, in whole tiles, and what is merged
    assert uneven.took / uneven.ideal > MOST_OF_IDEAL
    long = waves(132, 132, cut, [(8192, 64), *[(300, 64)] * 7], 8, 4)
    assert long.took / long.ideal < MOST_OF_IDEAL


def test_trees_alone_are_work_as_well():
    one = waves(4, 4, Blocks(16, 64, 4, 3), [(0, 1)], 1, 1)
    assert (one.took, one.ideal) == (1, 1)


@given(rows=st.sampled_from([16, 32, 64, 128]))
def test_rows_are_merged_in_whole_parts(rows):
    assert rows % cutting.merged_rows(rows) == 0


def test_a_page_is_as_large_as_the_largest_tile_of_keys():
    """Tiles are cut by no page then; of larger ones more would be unused where texts end."""
    dims, rows = (16, 64, 80, 128, 192, 256), (1, 16, 32, 64, 128)
    kinds, types = ("other", "hopper", "amd"), (torch.bfloat16, torch.float16, torch.float32)
    cuts = [blocks(dim, dim, count, dtype, kind) for dim, count, kind, dtype in product(dims, rows, kinds, types)]
    assert max(cut.keys for cut in cuts) == PAGE_ROWS
    assert all(PAGE_ROWS % cut.keys == 0 for cut in cuts)
