"""Writes down what a device does, so that it is repeated without Python."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from talon_core.errors import one_line

T = TypeVar("T")


class Recorder(ABC):
    """Writes down what a function does on a device, so that it can be done again without Python."""

    @abstractmethod
    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record one call.

        Args:
            function: works on device memory alone. It may be called several times before it is recorded.

        Returns:
            What the recorded call returned, and what repeats it: the same work on the same memory, the returned
            tensors among it. Of what is returned nothing has been computed yet.

        Raises:
            RuntimeError: if the function cannot be recorded, as it asks the device for something.
        """


class CudaGraphs(Recorder):
    """CUDA graphs, which share one pool of memory: what one of them returns may be lost when another is repeated."""

    def __init__(self) -> None:
        self._stream: Any = None  # one for warming up and for capturing, so that libraries have their memory by then
        self._last: Any = None  # keeps the pool alive where all other graphs are given up

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
        before = torch.cuda.current_stream()
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            function()  # kernels are compiled and buffers made
            with _asking_raises():  # found here, it does no harm; a capture that breaks off may
                function()
        before.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        pool = self._last.pool() if self._last is not None else None
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                out = function()
        finally:
            torch.cuda.set_stream(before)  # a capture that breaks off leaves its own
        self._last = graph
        return out, graph.replay


@contextmanager
def _asking_raises() -> Iterator[None]:
    """While entered, an operation that waits for the device is a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Recording:
    """A recorder for as long as it works.

    Attributes:
        failure: why it does not any more.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self.failure: str | None = None
        self._recorder = recorder

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]] | None:
        """As `Recorder.record`; None where nothing is recorded, or no more."""
        if self._recorder is None:
            return None
        try:
            return self._recorder.record(function)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the model asks its device for something; it runs, but not as a graph
            self.failure = one_line(error)
            self._recorder = None
            why = f"passes run without CUDA graphs, which is slower: {self.failure}"
            warnings.warn(why, RuntimeWarning, stacklevel=2)
            return None
