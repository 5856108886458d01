"""What a tape refuses: what a graph could not repeat."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from talon_core.testing.tape import TapeRecorder
from talon_tests.launches import Launches

ROWS = torch.arange(4.0)
KEPT = torch.tensor([3, 1])


def of_numbers(rows: Tensor) -> Tensor:
    return rows[torch.tensor([3, 1])]


def of_an_array(rows: Tensor) -> Tensor:
    return rows * torch.from_numpy(np.ones(4, dtype=np.float32))


def of_another_device(rows: Tensor) -> Tensor:
    numbers = torch.from_numpy(np.array([3, 1])).to("cpu", torch.int32)
    return rows.index_select(0, numbers)


@pytest.mark.parametrize("work", [of_numbers, of_an_array, of_another_device])
def test_numbers_of_the_host_are_refused(work: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"reads a tensor of shape .* nobody keeps; numbers of the host"):
        TapeRecorder().record(lambda: work(ROWS))


def test_memory_that_is_given_up_is_refused() -> None:
    held = [torch.ones(4), torch.ones(4), torch.ones(4)]  # one for each call, the last of which is recorded
    with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor reads a tensor of shape \(4,\)"):
        TapeRecorder().record(lambda: ROWS + held.pop())


@pytest.mark.parametrize(
    "work",
    [
        lambda: ROWS[KEPT] * 2.0,
        lambda: ROWS * torch.tensor(0.5),  # of no dimension: the number is part of the graph
        lambda: ROWS + torch.arange(4),  # made on the device
        lambda: (ROWS.view(2, 2).t() @ torch.ones(2, 1)).softmax(0),
    ],
)
def test_what_stays_and_what_a_pass_makes_are_taken(work: Callable[[], Tensor]) -> None:
    recorder = TapeRecorder()
    out, repeat = recorder.record(work)
    assert bool(out.isnan().all())
    repeat()
    assert torch.equal(out, work())
    assert recorder.retained == out.untyped_storage().nbytes()


@pytest.mark.parametrize("inference", [False, True])
def test_a_launch_is_what_makes_memory_whatever_it_may_do_elsewhere(inference: bool) -> None:
    """In inference mode torch tells of other types and other orders as it does of views."""
    numbers = torch.arange(6.0).view(2, 3)
    with torch.inference_mode(inference), Launches() as launches:
        numbers.view(3, 2), numbers.t(), numbers.reshape(6), numbers.contiguous(), numbers.to(numbers.dtype)
        assert launches.counts.total() == 0
        numbers.long(), numbers.t().reshape(6), numbers.t().contiguous()
        assert launches.counts.total() == 3
