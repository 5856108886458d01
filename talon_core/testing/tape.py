"""What a CPU can show of CUDA graphs: a recorder that keeps to their rules.

A tape holds the operations of one call with the tensors they read and wrote, as a graph holds kernels and addresses.
Repeating it runs no Python of the recorded function: numbers that were taken from the host stay what they were, and a
request to the host is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

from talon_core.attention import DeviceBackend, PackedLayout
from talon_core.runtime.recording import Recorder

T = TypeVar("T")

ASKS_THE_HOST = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


# torch has no types for its modes
# mypy: disable-error-code="no-untyped-call"


class Tape(TorchDispatchMode):
    """Writes down what is done while it is entered."""

    current: ClassVar["Tape | None"] = None

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Callable[..., Any], Sequence[Any], dict[str, Any], Any]] = []

    def __enter__(self) -> "Tape":
        Tape.current = self
        super().__enter__()
        return self

    def __exit__(self, *of: Any) -> None:
        Tape.current = None
        super().__exit__(*of)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ASKS_THE_HOST:
            raise RuntimeError(f"{func.name()} asks the device for something while a pass is recorded")
        return self.note(func, args, kwargs or {})

    def note(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Do one step, and write it down as one, whatever it does inside."""
        with _disable_current_modes():
            out = function(*args, **kwargs)
        self._steps.append((function, args, kwargs, out))
        return out

    def repeat(self) -> None:
        """Do all steps again, in the same memory."""
        for function, args, kwargs, out in self._steps:
            for old, new in zip(tree_iter(out), tree_iter(function(*args, **kwargs)), strict=True):
                # what shares memory with an argument has been written there
                if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class TapeRecorder(Recorder):
    """Records tapes.

    Attributes:
        recorded: how many.
        repeated: how often any of them was repeated.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.repeated = 0
        self._results: list[list[Tensor]] = []

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        for _ in range(2):
            function()
        with Tape() as tape:
            out = function()
        self.recorded += 1
        own = [one for one in tree_iter(out) if isinstance(one, Tensor)]
        _poison(own)  # a graph has computed nothing when it is recorded
        self._results.append(own)

        def repeat() -> None:
            self.repeated += 1
            for others in self._results:  # graphs share their memory
                if others is not own:
                    _poison(others)
            tape.repeat()

        return out, repeat


def _poison(results: list[Tensor]) -> None:
    for one in results:
        one.fill_(float("nan") if one.is_floating_point() else -(2**30))


class TapedBackend(DeviceBackend):
    """Another backend, each of whose calls is one step on a tape, as a launch is one node of a graph."""

    name = "taped"

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return self._backend.unavailable(device, dtype)

    def attend_packed(self, query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, **options: Any) -> Tensor:
        return _step(self._backend.attend_packed, query, key, value, layout, **options)

    def greedy_walk(
        self, best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
    ) -> Tensor:
        return _step(self._backend.greedy_walk, best, tokens, parents, sequences, ends, longest)

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[Tensor, Tensor], None]:
        move = self._backend.mover(buffers)
        return lambda sequences, walks: _step(move, sequences, walks)


def _step(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    if Tape.current is None:
        return function(*args, **kwargs)
    out: T = Tape.current.note(function, args, kwargs)
    return out
