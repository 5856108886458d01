"""Rows that passes read by their places: what was kept is found there, whatever came after it."""

import numpy as np
import pytest
import torch
from torch import Tensor

from talon_core import TokenTree
from talon_core.runtime import Executor, HostExecutor, KeptRows, Numbers, TreeView, executor_for
from talon_core.runtime.rows import FEWEST_ROWS
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_kernels import ReferenceAttention

CPU = torch.device("cpu")


def kinds() -> dict[str, Executor]:
    return {
        "host": executor_for(ReferenceAttention(), CPU),
        "recorded": executor_for(TapedBackend(PlainDevice()), CPU, TapeRecorder()),
    }


def sums(executor: Executor, rows: KeptRows, places: np.ndarray, made: np.ndarray) -> Tensor:
    """Read the rows at `places` in a pass, and write their sums to each of `made`."""
    tree = TokenTree([0] * len(places), [-1, *range(len(places) - 1)], [0.0] * len(places))

    def work(view: TreeView) -> Tensor:
        found = rows.table.index_select(0, view.more["places"]).sum(-1, keepdim=True)
        rows.table.index_copy_(0, view.more["made"], found.expand(-1, rows.table.shape[1]))
        return found[:, 0]

    more = {"places": Numbers(places), "made": Numbers(made, rows.padding)}
    with torch.inference_mode():
        found = executor.lasting(executor.run(executor.inputs({0: (tree, 0)}), work, None, more))[: len(places)]
    executor.commit({0: np.arange(0)})
    return found


@pytest.mark.parametrize("kind", ["host", "recorded"])
def test_a_pass_reads_what_was_kept_and_what_an_earlier_pass_wrote(kind: str) -> None:
    executor = kinds()[kind]
    executor.cache.open(0, 64)
    rows = KeptRows(executor)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):  # as many shapes as there are; the second round of each is a replay
        for count in (1, 3, 7, 3, FEWEST_ROWS):
            rows.clear()
            kept = torch.randn((count, 5), generator=generator)
            places = rows.keep(kept)
            first = sums(executor, rows, places, rows.reserve(count))
            assert torch.allclose(first, kept.sum(-1))
            again = sums(executor, rows, places + count, rows.reserve(count))
            assert torch.allclose(again, 5 * kept.sum(-1))


def test_the_table_stays_where_it_is_until_it_is_too_small_and_then_nothing_is_lost() -> None:
    class Counted(HostExecutor):
        forgotten = 0

        def forget(self) -> None:
            self.forgotten += 1

    executor = Counted(ReferenceAttention(), CPU)
    rows = KeptRows(executor)
    first = torch.randn(3, 4)
    assert rows.keep(first).tolist() == [0, 1, 2]
    assert executor.forgotten == 1
    before = rows.table.data_ptr()
    rows.clear()
    rows.keep(first)
    rows.reserve(FEWEST_ROWS - 4)
    assert (rows.table.data_ptr(), executor.forgotten) == (before, 1)
    assert rows.reserve(1).tolist() == [FEWEST_ROWS - 1]
    assert executor.forgotten == 2
    assert torch.equal(rows.table[:3], first)
    assert rows.padding > FEWEST_ROWS - 1


def test_padding_is_behind_everything_that_was_kept() -> None:
    rows = KeptRows(kinds()["host"])
    for count in (1, 100, 155, 1, 700):
        assert (rows.keep(torch.ones(count, 2)) < rows.padding).all()
