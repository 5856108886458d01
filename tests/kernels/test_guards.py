"""Guards round the memory of interpreted kernels: what a kernel reads or writes beside it does not go unnoticed."""

import pytest
import torch

from talon_kernels.commit_path import BufferTable, commit_path
from talon_tests.interpreter import GUARD, Guarded, pattern

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def _copy(source, result, begin, end):
    for at in range(begin, end):
        tl.store(result + at, tl.load(source + at))


@triton.jit
def _fill(result, at, number):
    tl.store(result + at, number)


@pytest.fixture
def interpreted(device):
    if device.type != "cpu":
        pytest.skip("a GPU's memory has no guards here")


def test_inside_its_memory_a_kernel_does_what_it_does(interpreted):
    numbers = torch.arange(40.0)
    source, result = numbers[3:30:3], torch.full((9,), torch.nan)
    _copy[(1,)](source.contiguous(), result, 0, 9)
    assert torch.equal(result, source)
    _copy[(1,)](numbers, numbers[5:], 0, 5)  # one memory for both
    assert numbers[5:10].tolist() == numbers[:5].tolist()


@pytest.mark.parametrize("at", [-1, 9, GUARD // 4 + 8])
def test_what_is_written_outside_is_found(interpreted, at):
    around = torch.zeros(3 * GUARD)
    result = around[GUARD : GUARD + 9]  # what lies beside it in memory is somebody's as well
    with pytest.raises(AssertionError, match=f"_fill was written to {'before' if at < 0 else 'behind'} its memory"):
        _fill[(1,)](result, at, 5.0)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_a_kernels_minus_one_is_found_as_well(interpreted, dtype):
    """What stands where there is nothing: as bytes, guards of -1 would hold it already."""
    with pytest.raises(AssertionError, match="_fill was written to behind its memory"):
        _fill[(1,)](torch.zeros(7, dtype=dtype), 7, -1)


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_guards_are_no_numbers_of_any_type(dtype, at):
    size = dtype.itemsize
    own = Guarded(torch.zeros(at * size, dtype=torch.uint8))
    assert own.data.numel() == at * size
    for guard in (own._room[:GUARD], own._room[-GUARD:]):
        assert guard.view(dtype).isnan().all()
    whole = pattern(GUARD).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    assert (whole < -1).all()


def test_what_is_read_outside_is_no_number(interpreted):
    around = torch.zeros(20)
    result = torch.zeros(12)
    _copy[(1,)](around[:9], result, 0, 12)
    assert result[:9].eq(0).all()
    assert result[9:].isnan().all()
    whole = torch.zeros(2, dtype=torch.int32)
    _copy[(1,)](around.int()[:1], whole, 0, 2)
    assert whole.tolist() == [0, -0x10002]


def test_buffers_whose_addresses_a_kernel_gets_have_guards_as_well(interpreted):
    rows = torch.arange(48.0).reshape(6, 1, 2, 4)  # pages of two rows
    table = BufferTable([rows[1:3], rows[3:5]])
    sequences = torch.zeros(1, 4, dtype=torch.int32)

    def commit(path, pages):
        walks = torch.tensor([[len(path), 7, *path]], dtype=torch.int32)
        commit_path(table, sequences, walks, torch.tensor([pages], dtype=torch.int32), backend="triton")

    commit([0, 2, 3], [0, 1])
    assert rows[1:5, 0, :, 0].flatten().tolist() == [8.0, 16.0, 20.0, 20.0, 24.0, 32.0, 36.0, 36.0]
    commit([0, 2], [0, 2])  # from the page behind a buffer, which is somebody's
    assert rows[[1, 3], 0, 1].isnan().all()
    with pytest.raises(AssertionError, match="_move was written to behind its memory"):
        commit([0, 1, 4], [0, 2, 1])


def test_guards_are_looked_at_on_both_sides():
    for at, where, size in ((-1, "before", 3), (3, "behind", 3), (4, "behind", 4)):
        guarded = Guarded(torch.zeros(size, dtype=torch.uint8))
        guarded.check("this")
        guarded._room[GUARD + at] = 0
        with pytest.raises(AssertionError, match=f"this was written to {where} its memory"):
            guarded.check("this")
