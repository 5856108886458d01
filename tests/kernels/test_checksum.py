"""The sum by which changed bytes are noticed."""

import numpy as np
import pytest


def told(data):
    """What it is, by its definition: words times odd numbers, and the bytes that are left."""
    words = data[: len(data) // 8 * 8].view(np.uint64)
    places = np.arange(len(words), dtype=np.uint64)
    left = int(data[len(words) * 8 :].sum(dtype=np.uint64)) << 32
    return (int((words * (places * 2 + 1)).sum(dtype=np.uint64)) + left) % 2**64


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 100, 255, 256, 257, 511, 513, 1000, 12345])
def test_words_count_by_where_they_stand(library, size, threads):
    data = np.random.default_rng(size).integers(0, 256, size + 8, dtype=np.uint8)
    for start in (0, 8):
        given = data[start : start + size]
        assert library.checksum(given.ctypes.data, size, threads) == told(given)
    odd = np.ascontiguousarray(data[3 : 3 + size])
    assert library.checksum(data[3:].ctypes.data, size, threads) == told(odd)


def test_any_changed_bit_and_any_two_exchanged_words_are_noticed(library):
    data = np.random.default_rng(0).integers(0, 256, 8 * 70 + 3, dtype=np.uint8)
    before = library.checksum(data.ctypes.data, len(data), 1)
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            assert library.checksum(data.ctypes.data, len(data), 1) != before
            data[at] ^= 1 << bit
    words = data[: 8 * 70].view(np.uint64)
    for one in range(70):
        for other in range(one):
            words[[one, other]] = words[[other, one]]
            assert library.checksum(data.ctypes.data, len(data), 1) != before
            words[[one, other]] = words[[other, one]]
