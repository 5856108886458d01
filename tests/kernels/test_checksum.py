"""The sums by which changed bytes are noticed."""

import numpy as np
import pytest
import torch

from talon_kernels.narrow import Checked, changes


def told(data):
    """What it is, by its definition: words times odd numbers, and the bytes that are left."""
    words = data[: len(data) // 8 * 8].view(np.uint64)
    places = np.arange(len(words), dtype=np.uint64)
    left = int(data[len(words) * 8 :].sum(dtype=np.uint64)) << 32
    return (int((words * (places * 2 + 1)).sum(dtype=np.uint64)) + left) % 2**64


def sums_of(library, pieces, threads=1):
    """What the kernel says of them."""
    at = np.array([piece.ctypes.data for piece in pieces], dtype=np.uint64)
    sizes = np.array([len(piece) for piece in pieces], dtype=np.int64)
    sums = np.full(len(pieces), 0xAB, dtype=np.uint64)
    library.checksums(at.ctypes.data, sizes.ctypes.data, len(pieces), threads, sums.ctypes.data)
    return sums.tolist()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 100, 255, 256, 257, 511, 513, 1000, 12345])
def test_words_count_by_where_they_stand(library, size, threads):
    data = np.random.default_rng(size).integers(0, 256, size + 8, dtype=np.uint8)
    for start in (0, 8, 3):
        given = data[start : start + size]
        assert sums_of(library, [given], threads) == [told(np.array(given))]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("sizes", [[], [0, 0], [3, 0, 7], [5, 8, 1, 12345, 0, 63], [100] * 40, [7000, 1, 9, 64, 900]])
def test_each_piece_has_the_sum_that_it_has_alone(library, sizes, threads):
    rng = np.random.default_rng(0)
    pieces = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    assert sums_of(library, pieces, threads) == [told(piece) for piece in pieces]


def test_any_changed_bit_and_any_two_exchanged_words_are_noticed(library):
    data = np.random.default_rng(0).integers(0, 256, 8 * 70 + 3, dtype=np.uint8)
    before = sums_of(library, [data])
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            assert sums_of(library, [data]) != before
            data[at] ^= 1 << bit
    words = data[: 8 * 70].view(np.uint64)
    for one in range(70):
        for other in range(one):
            words[[one, other]] = words[[other, one]]
            assert sums_of(library, [data]) != before
            words[[one, other]] = words[[other, one]]


def test_a_tensor_that_has_other_bytes_or_stands_elsewhere_has_changed(library):
    weights = [torch.nn.Parameter(torch.randn(7, 63)) for _ in range(3)]
    checked = Checked(library, weights)
    assert checked.refresh() == 0
    weights[1].data[3, 4] += 1
    weights[2].data.view(torch.int32)[0, 0] ^= 1
    assert checked.refresh() == 2
    assert checked.refresh() == 0
    weights[0].data = weights[0].data.clone()
    assert checked.refresh() == 1
    weights[0].data = weights[0].data[:5]
    assert checked.refresh() == 1


def test_what_is_looked_at_for_the_first_time_has_not_changed(library):
    before = changes()
    Checked(library, [torch.nn.Parameter(torch.randn(7, 63))])
    assert changes() == before


def test_what_is_not_contiguous_is_left_to_others(library):
    weight = torch.nn.Parameter(torch.randn(7, 63))
    checked = Checked(library, [weight])
    assert weight in checked
    assert torch.nn.Parameter(weight.detach()) not in checked
    weight.data = weight.data.T
    assert weight not in checked
    assert checked.refresh() == 1
    weight.data[0, 0] += 1
    assert checked.refresh() == 0
    weight.data = weight.data.contiguous()
    assert weight in checked
    assert checked.refresh() == 1
