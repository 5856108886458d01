"""What an executor has recorded: the passes and calls that came last, with one memory for what all of them return."""

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import attrs
import torch

from talon_core.runtime.recording import Recorder, Recording
from talon_core.runtime.results import SharedResults

MOST_RECORDED = 64
"""Passes and calls that are kept at a time; each has memory of its own, for its launches and what it reads."""


@attrs.frozen(eq=False)
class Recorded:
    """A pass or a call.

    Attributes:
        inputs: the memory that it reads.
        out: what it returns; of no use where it is not repeated.
        repeat: does it again; None where it runs as it is.
        on_cache: whether it is on the buffers of the cache.
    """

    inputs: Any
    out: Any
    repeat: Callable[[], None] | None
    on_cache: bool


class Recordings:
    """What is recorded, by key; the least recently used is dropped where there are too many.

    Args:
        recorder: records, each key once; None runs everything as it is.

    Attributes:
        tried: how often something was recorded, or failed to be.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recording = Recording(recorder)
        self._drawing = Recording(recorder, "tokens are drawn behind CUDA graphs, not within them")
        self._results = SharedResults()
        self._kept: dict[Hashable, Recorded] = {}
        self.tried = 0

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded any more, if recording something has failed."""
        return self._recording.failure

    @property
    def draws(self) -> bool:
        """Whether passes in which tokens are drawn are recorded, as far as is known."""
        return self.active and self._drawing.failure is None

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._recording.active

    @property
    def passes(self) -> int:
        """How many passes on the cache are recorded now."""
        return sum(one.on_cache and one.repeat is not None for one in self._kept.values())

    def find(self, key: Hashable) -> Recorded | None:
        """What is kept under a key, which counts as used now."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._kept[key] = found  # the latest stands last
        return found

    def has_place_for(self, key: Hashable) -> bool:
        """Whether nothing is kept under a key yet, and nothing has to be dropped for it."""
        return key not in self._kept and len(self._kept) < MOST_RECORDED

    def record(
        self,
        key: Hashable,
        inputs: Any,
        work: Callable[[], Any],
        on_cache: bool,
        wanted: bool = True,
        draws: bool = False,
    ) -> Recorded:
        """Record what comes under a key for the first time.

        Args:
            key: tells it apart from others.
            inputs: the memory that it reads, which is kept with it.
            work: reads them, and returns a tensor, or a tuple of tensors and tuples.
            on_cache: as in `Recorded`.
            wanted: whether it is done now, so that it is kept as what runs as it is where memory is too short to record
                it. A warning says so.
            draws: whether tokens are drawn in it. Where that cannot be recorded, nothing is kept of it, and others may
                be recorded still, unless a capture has broken off.

        Returns:
            What is kept now; without `repeat` where nothing is recorded, or memory was too short for it.

        Raises:
            torch.OutOfMemoryError: if memory is too short to record what is not wanted now; nothing is kept of it.
        """
        moves = self._results.moves
        self.tried += self.active
        made = self._made(self._drawing if draws and self.active else self._recording, work, wanted)
        if self._results.moves != moves or (made is None and self._recording.failure is not None):
            self._forget_results()  # they keep memory of before, or are not repeated any more
        recorded = Recorded(inputs, None, None, on_cache) if made is None else Recorded(inputs, *made, on_cache)
        if draws and self.active and not self.draws:
            return recorded  # from now on tokens are drawn behind passes, of which none is recorded yet
        self._kept[key] = recorded
        if len(self._kept) > MOST_RECORDED:
            del self._kept[next(iter(self._kept))]
        return recorded

    def _made(
        self, recording: Recording, work: Callable[[], Any], wanted: bool
    ) -> tuple[Any, Callable[[], None]] | None:
        before = self._results.state()
        try:
            return recording.record(lambda: self._results.copied(work()))
        except (torch.OutOfMemoryError, KeyboardInterrupt) as error:
            self._results.go_back(before)  # nobody else writes to a larger piece
            if not wanted or isinstance(error, KeyboardInterrupt):
                raise
        why = "a pass runs without a CUDA graph, which is slower: there is too little memory to record it"
        warnings.warn(why, RuntimeWarning, stacklevel=2)
        return None

    def _forget_results(self) -> None:
        self._kept = {key: one for key, one in self._kept.items() if one.repeat is None}
        if not self.active:
            self._results.clear()

    def forget_passes(self) -> None:
        """Give up what is on the buffers of the cache."""
        self._kept = {key: one for key, one in self._kept.items() if not one.on_cache}

    def forget(self) -> None:
        """Give up everything."""
        self._kept.clear()
        self._results.clear()
