"""Rows of numbers that passes read and write by their places, such as the states that a drafter drafts from."""

import numpy as np
import torch
from torch import Tensor

from talon_core.runtime.executor import Executor
from talon_core.runtime.streams import used_here
from talon_core.tree import IntArray

FEWEST_ROWS = 256
"""Rows that there is room for from the beginning, so that growing trees move nothing."""


class KeptRows:
    """Rows in device memory that a pass reads, or writes, by their places.

    A pass may be recorded, and a recording reads the memory that it read the first time. So what changes from pass to
    pass must stay where it is. Here it does: rows are put into one table, their places are sent with the pass as
    `Numbers`, and the pass reads `rows.table.index_select(0, view.more["places"])`. Where the table has to move, as it
    is too small, the executor's recordings are given up.

    Args:
        executor: runs the passes.

    Attributes:
        table: shape `(room, width)`; of the width, the dtype and the device of what was first kept.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._filled = 0
        self.table = torch.empty((0, 0))

    @property
    def padding(self) -> int:
        """A place that nobody reads: where a pass writes what is padding."""
        return len(self.table) - 1

    def clear(self) -> None:
        """Forget all rows; the table stays where it is."""
        self._filled = 0

    @torch.inference_mode()  # as passes, which may write to the table
    def keep(self, rows: Tensor) -> IntArray:
        """Put rows into the table.

        Args:
            rows: shape `(rows, width)`.

        Returns:
            Their places, int64.
        """
        if not len(self.table):
            self.table = rows.new_empty((0, rows.shape[1]))
        places = self.reserve(len(rows))
        self.table[self._filled - len(rows) : self._filled] = rows
        return places

    @torch.inference_mode()
    def reserve(self, count: int) -> IntArray:
        """Places for rows that a pass will write: `rows.table.index_copy_(0, view.more["places"], made)`.

        Args:
            count: how many; some rows were kept before, so that their width is known.

        Returns:
            The places, int64. Send them as `Numbers(places, rows.padding)`.
        """
        first, self._filled = self._filled, self._filled + count
        if self._filled >= len(self.table):  # one more is there for padding
            grown = self.table.new_empty((max(2 * self._filled, FEWEST_ROWS), self.table.shape[1]))
            grown[:first] = self.table[:first]
            used_here(self.table)
            self.table = grown
            self._executor.forget()
        return np.arange(first, self._filled)
