"""A device that is not there: tensors that say they are on it, and whose numbers are computed on the CPU all the same.

On it a pass does what it does, and what it asks of the host is seen, as a GPU would have it: tensors of two devices do
not go together, and copies to the host and back, and questions to the device, are counted. torch's own `FakeTensor`
computes nothing, and its tensors on "cuda" cannot be indexed by a torch that was built without CUDA; torch lets Python
have one more kind of device, "privateuseone", instead. It stays known to the process, which had better be a new one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from talon_core.attention import DeviceBackend, PackedLayout
from talon_core.testing.operands import leaves, mapped
from talon_tests.launches import is_launch

KIND = "privateuseone"

ASKS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::nonzero"}
"""Operations whose answer, or the size of it, the host waits for."""


class There(Tensor):
    """A tensor that says that it is on a device.

    Attributes:
        here: its numbers, on the CPU.
    """

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor, device: torch.device) -> "There":
        options = {"strides": here.stride(), "storage_offset": here.storage_offset(), "dtype": here.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, here.shape, device=device, **options)  # type: ignore[attr-defined]
        made.here = here
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func} is done outside of the pretended device")


class Pretended(TorchDispatchMode):
    """While entered, there are devices `privateuseone:0`, `privateuseone:1` and so on.

    Attributes:
        sent: copies from the host to a device.
        fetched: copies from a device to the host; each waits for the device.
        largest: numbers of the largest of these.
        asked: other questions to a device, by the operation.
        between: copies from device to device.
        done: operations on a device, without kernels of the backend and what only looks at memory in another way.
        waits: when a device was waited for, by `perf_counter`: for numbers, for an answer, or by `wait_for`.
    """

    def __init__(self) -> None:
        super().__init__()
        if torch._C._get_privateuse1_backend_name() != KIND or not hasattr(torch, KIND):
            _setup_privateuseone_for_python_backend()
        self.forget()

    def forget(self) -> None:
        """Count from 0."""
        self.sent = self.fetched = self.largest = self.between = self.done = 0
        self.asked: Counter[str] = Counter()
        self.waits: list[float] = []

    def wait_for(self, device: torch.device) -> None:
        """What stands for `talon_core.runtime.transfers.wait_for`."""
        if device.type == KIND:
            self.waits.append(perf_counter())

    @property
    def counts(self) -> dict[str, int]:
        asked, names = self.asked.total(), ("sent", "fetched", "between", "done")
        return {"asked": asked, **{name: getattr(self, name) for name in names}}

    def __enter__(self) -> "Pretended":
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes them here, and then sends them
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(False)
        super().__exit__(*error)

    def device(self, index: int = 0) -> torch.device:
        return torch.device(KIND, index)

    def move(self, module: nn.Module, index: int = 0) -> None:
        """Have a module's parameters and buffers on a device, which `Module.to` cannot do."""
        device = self.device(index)
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    part._parameters[name] = nn.Parameter(There(_here(parameter.data), device), requires_grad=False)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = There(_here(buffer), device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = leaves((args, kwargs))
        tensors = [one for one in given if isinstance(one, Tensor)]
        theirs = [one for one in tensors if isinstance(one, There)]
        wanted = next((one for one in given if isinstance(one, torch.device)), None)
        own = theirs[0].device if theirs else torch.device("cpu")
        place = wanted or own
        self._check(func.name(), args, tensors, theirs)
        if theirs and func.name() in ASKS:
            self.asked[func.name()] += 1
            self.waits.append(perf_counter())
        here = mapped(_here, args), mapped(_here, kwargs)
        with _disable_current_modes():
            out = func(*here[0], **here[1])
        self.done += (bool(theirs) or place.type == KIND) and is_launch(func, here, out)
        moves = wanted is not None and bool(tensors) and tensors[0].device != wanted
        if moves:
            self._moved(tensors[0], place)
        known = {id(one.here): one for one in theirs}

        def placed(one: Any) -> Any:
            if not isinstance(one, Tensor):
                return one
            if moves:
                one = one.clone()
            elif id(one) in known:  # done in place
                return known[id(one)]
            return There(one, place) if place.type == KIND else one

        return mapped(placed, out)

    def _check(self, name: str, args: Any, tensors: list[Tensor], theirs: list[There]) -> None:
        """Tensors of one operation are on one device, but for numbers on the host, copies, and what is indexed with."""
        devices = {one.device for one in theirs}
        if name == "aten::copy_" and len(tensors) > 1:
            if tensors[0].device != tensors[1].device:
                self._moved(tensors[1], tensors[0].device)
            return
        of_host = [one for one in tensors if one.dim() and not isinstance(one, There)] if theirs else []
        if of_host and name.startswith("aten::index") and not any(one is args[0] for one in of_host):
            self.sent += len(of_host)  # indices may be on the host: torch sends them
        elif of_host or len(devices) > 1:
            found = sorted({str(one.device) for one in (*theirs, *of_host)})
            raise RuntimeError(f"{name} expects all tensors on one device, but they are on {' and '.join(found)}")

    def _moved(self, source: Tensor, target: torch.device) -> None:
        if source.device.type != KIND:
            self.sent += 1
        elif target.type != KIND:
            self.fetched += 1
            self.waits.append(perf_counter())
            self.largest = max(self.largest, source.numel())
        else:
            self.between += 1


def _here(one: Any) -> Any:
    """An argument as the CPU takes it."""
    if isinstance(one, There):
        return one.here
    return torch.device("cpu") if isinstance(one, torch.device) else one


class PretendedBackend(DeviceBackend):
    """Another backend, whose calls are launches on a pretended device: nothing of them is seen by the host."""

    name = "pretended"

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend = backend

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        return None

    def attend_packed(self, query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, **options: Any) -> Tensor:
        arrays = layout.sequences, layout.depths, layout.bits

        def attend(query: Tensor, key: Tensor, value: Tensor, arrays: Any, options: Any) -> Tensor:
            return self._backend.attend_packed(query, key, value, PackedLayout(*arrays, layout.most), **options)

        return launched(attend, query, key, value, arrays, options)

    def greedy_walk(self, *arguments: Any) -> Tensor:
        return launched(self._backend.greedy_walk, *arguments)

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
        with _disable_current_modes():
            move = self._backend.mover([_here(buffer) for buffer in buffers])
        return lambda *numbers: launched(lambda _, *own: move(*own), buffers, *numbers)


def launched(function: Callable[..., Any], *arguments: Any) -> Any:
    """Do something on the device that the tensors among the arguments are on.

    Raises:
        RuntimeError: if they are on several, or on the host.
    """
    tensors = [one for one in leaves(arguments) if isinstance(one, Tensor)]
    devices = {one.device for one in tensors}
    if len(devices) > 1 or not all(isinstance(one, There) for one in tensors):
        raise RuntimeError(f"a kernel was given tensors on {' and '.join(sorted(map(str, devices)))}")
    with _disable_current_modes():
        out = function(*mapped(_here, arguments))
    return There(out, tensors[0].device) if isinstance(out, Tensor) else out
