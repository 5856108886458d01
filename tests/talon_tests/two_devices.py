"""Two GPUs that are not there: fake tensors, which have a device, a shape and a type, and no numbers.

An operation on tensors of both is an error, as on GPUs. Where PyTorch was built without CUDA it can neither index such
tensors, nor copy to them or invert them, nor send a single number to them. Here that is done by the operations that it
consists of.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")
aten = torch.ops.aten


_SAME = {Tensor.__invert__: aten.bitwise_not, Tensor.copy_: aten.copy_}


class _Operations(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            view, indices = _viewed(*args)
            return aten.index.Tensor(view, indices) if indices else view
        if func is Tensor.__setitem__:
            view, indices = _viewed(*args[:2])
            return aten.index_put_(view, indices, args[2]) if indices else aten.copy_(view, args[2])
        if func in _SAME:
            return _SAME[func](*args)
        if func is Tensor.to and args[1:] in ((FIRST,), (SECOND,)) and args[0].device.type == "cpu":
            return aten._to_copy(args[0], device=args[1])
        return func(*args, **(kwargs or {}))


def _viewed(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The view that an index means, and the tensors that are left to index it with, by dimension."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dim, indices = 0, list[Tensor | None]()
    whole = tensor.dim() - sum(part is not None and part is not Ellipsis for part in parts)
    every = [each for part in parts for each in ([slice(None)] * whole if part is Ellipsis else [part])]
    for part in every:
        if part is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(tensor, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, Tensor):
            indices += [None] * (dim - len(indices)) + [part]
        else:
            tensor, dim = tensor.select(dim, part), dim - 1
        dim += 1
    return tensor, indices


@contextmanager
def two_devices(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """While entered, there are `FIRST` and `SECOND`."""
    patch.setattr(torch.cuda, "device", lambda _: nullcontext())
    with FakeTensorMode(allow_non_fake_inputs=True), _Operations():
        yield


def place(model: nn.Module, where: dict[str, torch.device]) -> None:
    """Give a model fake parameters on devices; what enters a part is sent to its device, as accelerate does it.

    Args:
        model: a module.
        where: the device of each part, by the name of the part; of all others it is `FIRST`.
    """
    for name, module in model.named_modules():
        device = next((where[part] for part in where if name == part or name.startswith(f"{part}.")), FIRST)
        for own, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[own] = nn.Parameter(_fake(parameter, device), requires_grad=False)
        for own, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[own] = _fake(buffer, device)
        if name in where:
            module.register_forward_pre_hook(sends(device), with_kwargs=True)


def _fake(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def sends(device: torch.device) -> Callable[..., Any]:
    """A hook that sends what enters a part to a device, as accelerate does it."""
    return lambda _, args, kwargs: (send_to_device(args, device), send_to_device(kwargs, device))
