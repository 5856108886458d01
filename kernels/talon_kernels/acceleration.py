"""Makes a transformers model's own layers faster on a CPU, for as long as one asks for it, without changing it.

A layer is replaced only after its replacement reproduced its output on random input, so no list of model names is
needed: the probe tells Llama's `weight * x` from Gemma's `(1 + weight) * x`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from talon_core.sessions import RepeatableSession
from talon_kernels.gated_mlp.native import gated_mlp_native
from talon_kernels.gated_unit.native import KINDS
from talon_kernels.gated_unit.reference import gated_unit_reference
from talon_kernels.native import Library, load, unavailable
from talon_kernels.rms_norm.native import rms_norm_native
from talon_kernels.skinny_linear.native import skinny_linear_native

Forward = Callable[..., Any]

SAMPLED = 64
"""Numbers of a weight that are compared with its narrow copy whenever the acceleration is entered."""

PROBE_SCALES = (1.0, 1e-3, 30.0)
"""Sizes of the rows a replacement is tried on; in the small ones a norm's eps shows."""

PROBE_ERROR = 2e-5
"""Largest difference from the module's own output, relative to the largest element of the row."""

EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
MLP_CHILDREN = ("gate_proj", "up_proj", "down_proj")

_float32 = torch.float32


class Narrow:
    """A bfloat16 copy of a float32 weight whose numbers all are bfloat16 numbers: half the bytes, the same result.

    Most published weights are bfloat16, and stay so when they are loaded as float32.

    Args:
        weight: the parameter.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._of: tuple[int, int] | None = None
        self._copy: Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look whether the copy still is the weight's, and make it anew if not; reads little where nothing changed."""
        weight = self._weight.detach()
        now = (weight.data_ptr(), self._weight._version)
        if now != self._of or (self._copy is not None and not _same_numbers(_sample(self._copy), _sample(weight))):
            self._of = now
            self._copy = _narrowed(weight)

    def of(self, weight: Tensor) -> Tensor:
        """The copy, if there is one and it is this weight's; otherwise the weight."""
        if self._copy is None or weight is not self._weight or (weight.data_ptr(), weight._version) != self._of:
            return weight
        return self._copy


def _sample(weight: Tensor) -> Tensor:
    flat = weight.reshape(-1)
    return flat[:: max(1, len(flat) // SAMPLED)]


def _same_numbers(narrow: Tensor, wide: Tensor) -> bool:
    return torch.equal(narrow.float(), wide)


def _narrowed(weight: Tensor) -> Tensor | None:
    """A bfloat16 copy of a weight that holds the same numbers, or None; most others show by a sample already."""
    sample = _sample(weight)
    if not _same_numbers(sample.to(torch.bfloat16), sample):
        return None
    copy = weight.to(torch.bfloat16).contiguous()
    return copy if _same_numbers(copy, weight) else None


class Acceleration(RepeatableSession):
    """Replacements for a model's layers, in force inside `with acceleration:`.

    Inside, the replaced modules carry an instance attribute `forward`; outside, nothing of the model is changed: not
    its classes, its parameters or its state. The weights stay the model's own and are looked up at every call, so they
    may be assigned anew. A call that a replacement is not made for (gradients, another type or device) goes to the
    module's own `forward`. It can be entered again while it is entered; not from two threads at a time.

    Attributes:
        reason: why nothing was replaced, as the end of a sentence, or None.
    """

    def __init__(
        self,
        replaced: list[tuple[str, nn.Module, Forward]],
        left: Counter[str],
        reason: str | None,
        narrow: Mapping[Tensor, Narrow] | None = None,
    ) -> None:
        self._replaced = replaced
        self._narrow = narrow or {}
        self._places = [(module.__dict__, forward, _classes(module)) for _, module, forward in replaced]
        self._patched: list[dict[str, Any]] = []
        self._left = left
        self._entered = 0
        self.reason = reason

    def __enter__(self) -> Acceleration:
        if self._entered == 0:
            for narrow in self._narrow.values():
                narrow.refresh()
        return self._enter()

    @contextmanager
    def again(self) -> Iterator[Acceleration]:
        entered = self._enter()
        try:
            yield entered
        finally:
            self.__exit__()

    def _enter(self) -> Acceleration:
        if self._entered == 0:
            # before anything is replaced: what has another `forward` by now was patched by somebody else
            free = [
                (own, forward)
                for own, forward, classes in self._places
                if not _patched(own) and all(cls.forward is before for cls, before in classes)
            ]
            if _global_forward_hooks or _global_forward_pre_hooks:  # every module must be called itself then
                free = []
            self._patched = [own for own, _ in free]
            for own, forward in free:
                own["forward"] = forward
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            for own in self._patched:
                own.pop("forward", None)
            self._patched = []

    def summary(self) -> dict[str, int]:
        """How many modules are replaced, by the kind of replacement; `left ...` counts modules that a probe refused."""
        counts = Counter(kind for kind, _, _ in self._replaced)
        return {**dict(sorted(counts.items())), **{f"left {kind}": n for kind, n in sorted(self._left.items())}}


@torch.no_grad()
def accelerate(model: nn.Module) -> Acceleration:
    """Prepare faster forwards for a model's linear layers, RMS norms and gated MLPs. Nothing is changed yet.

    Args:
        model: float32 on the CPU; other layers are left as they are, and without a compiler all of them are.

    Returns:
        A context; see `Acceleration`.
    """
    library = load()
    if library is None:
        return Acceleration([], Counter(), unavailable())
    replaced: list[tuple[str, nn.Module, Forward]] = []
    left: Counter[str] = Counter()
    narrow: dict[Tensor, Narrow] = {}
    # A generator of our own: preparing must not move the random numbers of the user.
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if not _plain(module):
            continue
        for kind, candidates in (
            ("linear", _linear_candidates(library, module, narrow)),
            ("rms norm", _norm_candidates(library, module)),
            ("gated mlp", _mlp_candidates(library, module, narrow)),
        ):
            if not candidates:
                continue
            width, forwards = candidates
            probe = torch.randn((1, len(PROBE_SCALES), width), generator=generator, dtype=_float32, device="cpu")
            probe *= torch.tensor(PROBE_SCALES, dtype=_float32, device="cpu")[:, None]
            chosen = next((forward for forward in forwards if _same(module, forward, probe)), None)
            if chosen is None:
                left[kind] += 1
            else:
                replaced.append((kind, module, chosen))
    return Acceleration(replaced, left, None, narrow)


Candidates = tuple[int, list[Forward]] | None
"""The width of a module's input, and the forwards it may have."""


def _classes(module: nn.Module) -> tuple[tuple[Any, Any], ...]:
    """The classes of a module and of those whose work its replacement does, each with its `forward`."""
    return tuple((type(one), type(one).forward) for one in (module, *module.children()))


def _patched(own: Mapping[str, Any]) -> bool:
    """Whether a module, or one of those whose work its replacement does, has another `forward` than its class.

    Args:
        own: the module's attributes.
    """
    if "forward" in own:
        return True
    children = own["_modules"]
    return bool(children) and any(child is not None and "forward" in child.__dict__ for child in children.values())


def _plain(module: nn.Module) -> bool:
    """Whether a module is what its class makes of it: not compiled, and with dense float32 parameters on the CPU."""
    if "forward" in module.__dict__ or module._compiled_call_impl is not None:
        return False
    return all(_plain_parameter(parameter) for parameter in module.parameters(recurse=False))


def _plain_parameter(parameter: Tensor) -> bool:
    """Whether its memory holds its numbers; a subclass of tensors may keep anything there."""
    if type(parameter) is not nn.Parameter or not parameter.is_cpu:
        return False
    return parameter.layout is torch.strided and parameter.dtype is _float32 and not parameter.is_neg()


def _plain_linear(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer with a weight of its own: not a subclass, quantised, pruned or compiled."""
    return type(module) is nn.Linear and module._parameters.get("weight") is not None and _plain(module)


def _same(module: nn.Module, forward: Forward, probe: Tensor) -> bool:
    """Whether a replacement gives what the module gives; one that fails on the probe does not."""
    try:
        expected, got = type(module).forward(module, probe), forward(probe)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    if type(expected) is not Tensor or expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    # Cancelling sums may be far off relative to themselves, not relative to the largest of their row.
    size = expected.abs().amax(dim=-1, keepdim=True) if expected.numel() else torch.zeros(1)
    if not bool((size > 0).all()):
        return False  # zeros would agree with anything
    return bool(((got - expected).abs() <= PROBE_ERROR * size).all())


def _usable(x: Any, weight: Any) -> bool:
    return (
        type(x) is Tensor
        and type(weight) is nn.Parameter
        and x.dtype is _float32
        and weight.dtype is _float32
        and x.is_cpu
        and weight.is_cpu
        and weight.is_contiguous()
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
    )


def _narrow_copy(weight: Tensor, narrow: dict[Tensor, Narrow]) -> Narrow | None:
    """One for each weight, tied ones included; None for a weight whose changes PyTorch does not count."""
    if weight.is_inference():
        return None
    if weight not in narrow:
        narrow[weight] = Narrow(weight)
    return narrow[weight]


def _linear_candidates(library: Library, module: nn.Module, narrow: dict[Tensor, Narrow]) -> Candidates:
    if not _plain_linear(module):
        return None
    copy = _narrow_copy(module.weight, narrow)
    own = type(module).forward
    parameters = module._parameters

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        weight, bias = parameters.get("weight"), parameters.get("bias")
        if args or kwargs or not _usable(x, weight) or (bias is not None and not _usable(x, bias)):
            return own(module, x, *args, **kwargs)
        assert weight is not None
        if x.shape[-1] != weight.shape[1]:
            return own(module, x)  # which words the error
        read = copy.of(weight) if copy is not None else weight
        return skinny_linear_native(library, x if x.is_contiguous() else x.contiguous(), read, bias)

    return module.in_features, [forward]


def _norm_candidates(library: Library, module: nn.Module) -> Candidates:
    weight = module._parameters.get("weight")
    if not type(module).__name__.endswith("RMSNorm") or weight is None or weight.dim() != 1:
        return None
    if len(module._parameters) > 1:
        return None
    name = next((name for name in EPS_NAMES if isinstance(getattr(module, name, None), float)), None)
    if name is None:
        return None
    return weight.shape[0], [_norm_forward(library, module, name, offset) for offset in (0.0, 1.0)]


def _norm_forward(library: Library, module: nn.Module, eps_name: str, offset: float) -> Forward:
    own = type(module).forward
    parameters = module._parameters

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        weight = parameters.get("weight")
        if args or kwargs or not _usable(x, weight):
            return own(module, x, *args, **kwargs)
        assert weight is not None
        if x.shape[-1] != weight.shape[0]:
            return own(module, x)
        return rms_norm_native(
            library, x if x.is_contiguous() else x.contiguous(), weight, getattr(module, eps_name), offset
        )

    return forward


def _mlp_candidates(library: Library, module: nn.Module, narrow: dict[Tensor, Narrow]) -> Candidates:
    children = module._modules
    if not set(MLP_CHILDREN) <= children.keys() or not hasattr(module, "act_fn"):
        return None
    gate = children["gate_proj"]
    if not _plain_linear(gate):
        return None
    for name in MLP_CHILDREN:
        child = children[name]
        if not _plain_linear(child):
            return None
        _narrow_copy(child.weight, narrow)
    return gate.in_features, [_mlp_forward(library, module, kind, narrow) for kind in KINDS if _activates(module, kind)]


def _listened_to(child: nn.Module | None) -> bool:
    """Whether somebody has put a hook on a module, which must be called itself then."""
    return child is not None and bool(child._forward_hooks or child._forward_pre_hooks)


def _activates(module: nn.Module, kind: str) -> bool:
    """Whether the MLP's activation is this one. On small numbers gelu and its tanh form agree: look further out."""
    x = torch.linspace(-8, 8, 257, dtype=_float32, device="cpu")
    activation: Any = module.act_fn
    try:
        got = activation(x)
    except (RuntimeError, TypeError, ValueError):
        return False
    return type(got) is Tensor and torch.allclose(
        got, gated_unit_reference(x, torch.ones_like(x), kind), rtol=1e-5, atol=1e-6
    )


def _mlp_forward(library: Library, module: nn.Module, kind: str, narrow: Mapping[Tensor, Narrow]) -> Forward:
    own = type(module).forward
    children = module._modules
    holder: dict[str, Any] = children if "act_fn" in children else module.__dict__
    activation = holder.get("act_fn")

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        affine: list[tuple[Tensor, Tensor | None]] = []
        for name in MLP_CHILDREN:
            child = children[name]
            if type(child) is not nn.Linear:  # it was exchanged, by an adapter perhaps, and must be called itself
                break
            weight, bias = child._parameters.get("weight"), child._parameters.get("bias")
            if not _usable(x, weight) or (bias is not None and not _usable(x, bias)):
                break
            assert weight is not None
            affine.append((weight, bias))
        exchanged = len(affine) < 3 or holder.get("act_fn") is not activation
        if args or kwargs or exchanged or any(map(_listened_to, children.values())):
            return own(module, x, *args, **kwargs)
        if x.shape[-1] != affine[0][0].shape[1]:
            return own(module, x)
        copies = [narrow[weight].of(weight) if weight in narrow else weight for weight, _ in affine]
        if all(copy.dtype is torch.bfloat16 for copy in copies):
            affine = [(copy, bias) for copy, (_, bias) in zip(copies, affine, strict=True)]
        gate, up, down = affine
        return gated_mlp_native(library, x if x.is_contiguous() else x.contiguous(), gate, up, down, kind)

    return forward
