"""Which modes a model's modules are in: training, compiled; asked in each round, so at little cost. And what it is."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn


class Modules:
    """The modules of a model as one walk has found them, and what mode they are in at any time after it.

    Args:
        model: whose modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self._plain: list[tuple[nn.Module, dict[str, Any]]] = []  # with their attributes
        self._scripts: list[nn.Module] = []  # those of TorchScript, which keep theirs elsewhere
        self._families: list[tuple[dict[str, Any], list[int]]] = []  # the children of one, and who they were
        self._classes: set[type] = set()
        seen = set()
        left: list[Any] = [model]
        while left:
            module = left.pop()
            if module is None or id(module) in seen:
                continue
            seen.add(id(module))
            if isinstance(module, torch.jit.ScriptModule):
                self._scripts.append(module)
                left.extend(module.children())  # which cannot be exchanged
                continue
            own = module.__dict__
            self._plain.append((module, own))
            self._classes.add(type(module))
            children = own["_modules"]
            if children:
                self._families.append((children, [*map(id, children.values())]))
                left.extend(children.values())

    def are_those_of_the_model(self) -> bool:
        """Whether no module was added, removed or exchanged since."""
        return all([*map(id, children.values())] == before for children, before in self._families)

    def mode(self) -> tuple[list[nn.Module], bool]:
        """Which modules are in training mode, and whether any was compiled.

        A module is compiled by `module.compile()`, as a wrapper, or by its `forward`.
        """
        training = [module for module in self._scripts if getattr(module, "training", False)]  # frozen ones have none
        compiled = any(is_wrapper(cls) or _is_compiled(getattr(cls, "forward", None)) for cls in self._classes)
        for module, own in self._plain:
            if own.get("training"):  # a wrapper has it of what it wraps
                training.append(module)
            if own.get("_compiled_call_impl") is not None or ("forward" in own and _is_compiled(own["forward"])):
                compiled = True
        return training, compiled


def recorded_parts(modules: Sequence[nn.Module]) -> list[object]:
    """What a recording of a model's pass holds on to: its modules, their hooks, and where its tensors are in memory.

    Where any of it has changed, the recording would go on with what was there before.

    Args:
        modules: all of the model, as `modules_of` has them.
    """
    parts: list[object] = []
    for module in modules:
        parts += [module, *module._forward_pre_hooks, *module._forward_hooks]
    for tensor in _tensors(modules):
        own = type(tensor) in (torch.Tensor, nn.Parameter)  # others may be nowhere
        parts += [id(tensor), tensor.data_ptr() if own else 0]
    return parts


def hooks_of(modules: Iterable[nn.Module]) -> list[Mapping[int, object]]:
    """Where hooks of these modules stand, and those of whatever module is called: all empty if there are none."""
    of_all = nn.modules.module
    found: list[Mapping[int, object]] = [of_all._global_forward_pre_hooks, of_all._global_forward_hooks]
    for module in modules:
        found += [module._forward_pre_hooks, module._forward_hooks]
    return found


NO_ATTRIBUTES = {*vars(nn.Module())}
"""What every module has: its parts, which are looked at one by one, and its mode."""

SIMPLE = (int, float, str, type(None))


def marks_of(
    modules: Sequence[nn.Module],
    watched: Callable[[torch.Tensor], bool],
    settings: Iterable[Mapping[str, object]] = (),
) -> list[object]:
    """By what one knows, beside its `recorded_parts`, that a model is as it was: what modules hold, and numbers.

    Of each tensor the sums of its rows are among them, because PyTorch does not count what is written through
    `tensor.data`. Reading all of it costs about as much as a pass over one token.

    Args:
        modules: all of the model, as `modules_of` has them.
        watched: tells tensors whose numbers somebody else compares.
        settings: that modules look up in each pass, by name.
    """
    of_all = nn.modules.module  # hooks for whatever module is called
    marks: list[object] = [*of_all._global_forward_pre_hooks, *of_all._global_forward_hooks]
    marks += [_mark(each) for each in settings]
    for module in modules:
        marks.append(getattr(type(module), "forward", None))
        marks += [_mark(value) for name, value in vars(module).items() if name not in NO_ATTRIBUTES]
    numbers: dict[torch.device, list[torch.Tensor]] = defaultdict(list)
    with torch.no_grad():
        for tensor in _tensors(modules):
            marks.append(0 if tensor.is_inference() else tensor._version)
            plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.numel() and not tensor.is_meta
            if plain and not watched(tensor):
                rows = _in_words(tensor).sum(-1, dtype=torch.float32 if tensor.is_floating_point() else None)
                numbers[tensor.device].append(rows.reshape(-1).double())
        marks += [torch.cat(of).cpu().numpy().tobytes() for of in numbers.values()]
    return marks


def _in_words(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes in fours, where rows are whole ones: they are summed several times as fast."""
    fours = tensor.dtype == torch.uint8 and tensor.is_contiguous() and tensor.ndim and tensor.shape[-1] % 4 == 0
    return tensor.view(torch.int32) if fours and tensor.data_ptr() % 4 == 0 else tensor


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once, in an order that is always the same; `nn.Module.modules` takes five times as
    long."""
    found: dict[int, nn.Module] = {}
    left: list[nn.Module | None] = [model]
    while left:
        module = left.pop()
        if module is not None and id(module) not in found:
            found[id(module)] = module
            left.extend(module._modules.values())
    return [*found.values()]


def _tensors(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Their own parameters and buffers, each once."""
    found: dict[int, torch.Tensor] = {}
    for module in modules:
        for tensor in chain(module._parameters.values(), module._buffers.values()):
            if tensor is not None:
                found.setdefault(id(tensor), tensor)
    return [*found.values()]


def _mark(value: Any) -> object:
    """A simple value as it is now, also inside of lists and mappings; of others, who it is."""
    kind = type(value)  # `isinstance` asks objects for their class, and configurations of transformers take long
    if issubclass(kind, SIMPLE):
        return value
    if issubclass(kind, dict):
        return [(key, _mark(one)) for key, one in value.items()]
    if issubclass(kind, (list, tuple, set)):
        return [*map(_mark, value)]
    return id(value)


def is_wrapper(cls: type) -> bool:
    """Whether `torch.compile` returns this class for a module; asked without importing the compiler."""
    return cls.__name__ == "OptimizedModule" and cls.__module__ == "torch._dynamo.eval_frame"


def _is_compiled(function: Any) -> bool:
    return "_torchdynamo_orig_callable" in getattr(function, "__dict__", {})
