"""What a CPU can show of CUDA graphs: a recorder that keeps to their rules.

A tape holds the operations of one call with the tensors they read and wrote, as a graph holds kernels and addresses.
Repeating it runs no Python of the recorded function: numbers that were taken from the host stay what they were, and a
request to the host is refused. So is memory that nobody keeps, such as a tensor that was made of numbers of the host
meanwhile: a graph would read whatever comes to stand there.
"""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet, ref

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from talon_core.attention import DeviceBackend, PackedLayout
from talon_core.runtime.recording import Recorder
from talon_core.testing.operands import leaves, mapped

T = TypeVar("T")

ASKS_THE_HOST = {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal"}


# torch has no types for its modes
# mypy: disable-error-code="no-untyped-call"


@attrs.frozen(eq=False)
class _Given:
    """A tensor that was not made by a tape's steps.

    Attributes:
        one: the tensor, for as long as somebody keeps it.
        same: another one of its memory.
        step: what read it first.
    """

    one: "ref[Tensor]"
    same: Tensor
    step: object


class Tape(TorchDispatchMode):
    """Writes down what is done while it is entered."""

    current: ClassVar["Tape | None"] = None

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Callable[..., Any], Sequence[Any], dict[str, Any], list[Tensor]]] = []
        self._made: dict[int, Tensor] = {}  # by the steps; by identity
        self._given: dict[int, _Given] = {}  # from outside; likewise
        self._every: list[_Given] = []

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
            kept = partial(self._kept, function)
            args, kwargs = mapped(kept, args), mapped(kept, kwargs)
            results = _tensors(out)
            self._made |= {id(one): one for one in results if not self._known(one)}
            self._steps.append((function, args, kwargs, [kept(one) for one in results]))
        return out

    def _known(self, tensor: Tensor) -> bool:
        """Whether it came from outside."""
        known = self._given.get(id(tensor))
        return known is not None and known.one() is tensor

    def _kept(self, step: object, tensor: Any) -> Any:
        """An operand as the tape keeps it: a tensor that comes from outside it does not keep alive."""
        if not isinstance(tensor, Tensor) or id(tensor) in self._made:
            return tensor
        if not self._known(tensor):
            self._given[id(tensor)] = _Given(ref(tensor), tensor.detach(), step)
            self._every.append(self._given[id(tensor)])
        return self._given[id(tensor)].same

    def check_kept(self) -> None:
        """Make sure that somebody keeps the memory that the steps read and have not made.

        A tensor of no dimension need not be kept: a graph holds the number.

        Raises:
            RuntimeError: if nobody does.
        """
        if any(given.one() is None for given in self._every):
            gc.collect()
        for given in self._every:
            if given.one() is None and given.same.ndim:
                raise RuntimeError(
                    f"{given.step} reads a tensor of shape {tuple(given.same.shape)} that came from outside of the "
                    "pass and that nobody keeps; numbers of the host are sent with a pass"
                )

    def repeat(self) -> None:
        """Do all steps again, in the same memory."""
        for function, args, kwargs, results in self._steps:
            for old, new in zip(results, _tensors(function(*args, **kwargs)), strict=True):
                # what shares memory with an argument has been written there
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


class _Recorded:
    """A tape, and what it gives.

    Attributes:
        results: these tensors.
    """

    def __init__(self, recorder: "TapeRecorder", tape: Tape, results: list[Tensor]) -> None:
        self._recorder = recorder
        self._tape = tape
        self.results = results

    def repeat(self) -> None:
        self._recorder.repeated += 1
        for other in self._recorder.alive:  # graphs share their memory
            if other is not self:
                _poison(other.results)
        self._tape.repeat()


class TapeRecorder(Recorder):
    """Records tapes.

    Attributes:
        recorded: how many.
        repeated: how often any of them was repeated.
        alive: those that somebody keeps.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.repeated = 0
        self.alive: WeakSet[_Recorded] = WeakSet()

    @property
    def retained(self) -> int:
        """Bytes that stay because tapes are kept which return them; of a graph, what it makes besides is shared."""
        storages = (one.untyped_storage() for each in self.alive for one in each.results)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        for _ in range(2):
            function()
        with Tape() as tape:
            out = function()
        tape.check_kept()
        self.recorded += 1
        made = _Recorded(self, tape, _tensors(out))
        _poison(made.results)  # a graph has computed nothing when it is recorded
        self.alive.add(made)
        return out, made.repeat


def _tensors(of: Any) -> list[Tensor]:
    return [one for one in leaves(of) if isinstance(one, Tensor)]


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

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
        move = self._backend.mover(buffers)
        return lambda *numbers: _step(move, *numbers)


def _step(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    if Tape.current is None:
        return function(*args, **kwargs)
    out: T = Tape.current.note(function, args, kwargs)
    return out
