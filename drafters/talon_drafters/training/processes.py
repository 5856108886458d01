"""Several processes that train one head together, as `accelerate launch` starts them."""

import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from accelerate import PartialState

LONGEST_STAGE = timedelta(days=30)
"""How long the others wait for the first process, which alone makes texts and states."""


class Processes:
    """Which of the processes that train together this one is; the only one, if it was not launched with others.

    Args:
        on_cpu: they train on CPUs.

    Attributes:
        count: how many there are.
        rank: which of them this is, from 0 on.
    """

    def __init__(self, on_cpu: bool) -> None:
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self._state = PartialState(cpu=on_cpu, timeout=LONGEST_STAGE) if launched else None
        self.count: int = self._state.num_processes if self._state is not None else 1
        self.rank: int = self._state.process_index if self._state is not None else 0

    @property
    def share(self) -> tuple[int, int]:
        """Rank and count: whose part of the batches is this one's."""
        return self.rank, self.count

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and reports."""
        return self.rank == 0

    def first_alone(self) -> AbstractContextManager[None]:
        """A context that the others enter when the first process has left it."""
        return self._state.main_process_first() if self._state is not None else nullcontext()
