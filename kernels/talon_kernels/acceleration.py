"""Makes a transformers model's own layers faster on a CPU, for as long as one asks for it, without changing it.

A layer is replaced only after its replacement reproduced its output on random input, so no list of model names is
needed: the probe tells Llama's `weight * x` from Gemma's `(1 + weight) * x`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from talon_core.runtime.blocks import BlockEmbedding, BlockLinear
from talon_core.sessions import WatchfulSession
from talon_kernels.narrow import Checked, Narrow
from talon_kernels.native import load, unavailable
from talon_kernels.replacements import (
    Forward,
    block_forward,
    linear_candidates,
    mlp_candidates,
    norm_candidates,
    plain,
)

PROBE_SCALES = (1.0, 1e-3, 30.0)
"""Sizes of the rows a replacement is tried on; in the small ones a norm's eps shows."""

PROBE_ERROR = 2e-5
"""Largest difference from the module's own output, relative to the largest element of the row."""

_float32 = torch.float32


REPLACED: dict[type, str] = {BlockEmbedding: "look_up"}
"""What is replaced of a module, where that is not its `forward`."""


class _Place:
    """A module, its replacement, and what it was when that was tried."""

    def __init__(self, module: nn.Module, forward: Forward) -> None:
        self.own = module.__dict__
        self.name = REPLACED.get(type(module), "forward")
        self.forward = forward
        self._classes = [(one, type(one), _forward_of(type(one))) for one in (module, *module.children())]
        self.parts = [one.__dict__ for one in module.modules()]
        configs = (own.get("config") for own in self.parts)  # which a forward may read
        self.parts += [vars(config) for config in configs if hasattr(config, "__dict__")]

    def free(self) -> bool:
        """Whether nobody has given the module, or a part whose work is replaced, another class or `forward`."""
        if _patched(self.own):
            return False
        return all(type(one) is cls and _forward_of(cls) is before for one, cls, before in self._classes)


class Acceleration(WatchfulSession):
    """Replacements for a model's layers, in force inside `with acceleration:`.

    Inside, the replaced modules carry an instance attribute `forward`, or `look_up` if they are tables in blocks;
    outside, nothing of the model is changed: not its classes, its parameters or its state. The weights stay the model's
    own and are looked up at every call, so they may be assigned anew. Entering, but not `again`, compares all of them
    with their narrow copies, or the sums of their bytes with those of before, and leaves out the modules whose settings
    have changed. A call that a replacement is not made for (gradients, another type or device) goes to the module's own
    `forward`. It can be entered again while it is entered; not from two threads at a time.

    Attributes:
        reason: why nothing was replaced, as the end of a sentence, or None.
    """

    def __init__(
        self,
        replaced: list[tuple[str, nn.Module, Forward]],
        left: Counter[str],
        reason: str | None,
        narrow: Mapping[Tensor, Narrow] | None = None,
        checked: Checked | None = None,
    ) -> None:
        self._replaced = replaced
        self._narrow = narrow or {}
        self._checked = checked
        self._places = [_Place(module, forward) for _, module, forward in replaced]
        # those of a part that several places have are looked at once
        self._settings = {id(own): (own, _settings(own)) for place in self._places for own in place.parts}
        self._trusted = self._places
        self._patched: list[_Place] = []
        self._left = left
        self._entered = 0
        self.reason = reason

    def __enter__(self) -> Acceleration:
        if self._entered == 0:
            self.changes += sum([narrow.refresh() for narrow in self._narrow.values()])
            self.changes += self._checked.refresh() if self._checked is not None else 0
            self._trusted = self._as_tried()
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
            free = [place for place in self._trusted if place.free()]
            if _global_forward_hooks or _global_forward_pre_hooks:  # every module must be called itself then
                free = []
            self._patched = free
            for place in free:
                place.own[place.name] = place.forward
        self._entered += 1
        return self

    def _as_tried(self) -> list[_Place]:
        """Where the settings of the module and its parts, such as a factor, are those that it was tried with."""
        changed = {key for key, (own, before) in self._settings.items() if _settings(own) != before}
        if not changed:
            return self._places
        return [place for place in self._places if changed.isdisjoint(map(id, place.parts))]

    def watches(self, weight: object) -> bool:
        if not isinstance(weight, Tensor):
            return False
        narrow = self._narrow.get(weight)
        if narrow is not None:
            return narrow.compares
        return self._checked is not None and weight in self._checked

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            for place in self._patched:
                place.own.pop(place.name, None)
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
    found: list[tuple[str, nn.Module, Forward]] = []
    left: Counter[str] = Counter()
    narrow: dict[Tensor, Narrow] = {}
    # A generator of our own: preparing must not move the random numbers of the user.
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if not plain(module):
            continue
        in_blocks = block_forward(library, module)
        if in_blocks is not None:
            found.append(("layer in blocks", module, in_blocks))
            continue
        for kind, candidates in (
            ("linear", linear_candidates(library, module, narrow)),
            ("rms norm", norm_candidates(library, module)),
            ("gated mlp", mlp_candidates(library, module, narrow)),
        ):
            if not candidates:
                continue
            width, forwards = candidates
            probe = torch.randn((1, len(PROBE_SCALES), width), generator=generator, dtype=_float32, device="cpu")
            probe *= torch.tensor(PROBE_SCALES, dtype=_float32, device="cpu")[:, None]
            # what is in blocks would be widened as a whole by its own forward
            in_blocks_too: dict[nn.Module, Forward] = {
                child: own
                for child in module.children()
                if type(child) is BlockLinear and (own := block_forward(library, child))
            }
            with replaced(in_blocks_too):
                chosen = next((forward for forward in forwards if same(module, forward, probe)), None)
            if chosen is None:
                left[kind] += 1
            else:
                found.append((kind, module, chosen))
    read = {id(tensor): tensor for _, module, _ in found for tensor in _own_tensors(module)}
    others = [tensor for tensor in read.values() if tensor.numel() and tensor not in narrow]
    return Acceleration(found, left, None, narrow, Checked(library, others))


@contextmanager
def replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """While entered, these modules have these forwards; afterwards those that somebody had bound to them, again."""
    bound = {module: module.__dict__["forward"] for module in forwards if "forward" in module.__dict__}
    for module, forward in forwards.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            module.__dict__.pop("forward", None)
        for module, forward in bound.items():
            module.__dict__["forward"] = forward


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(recurse=False), module.buffers(recurse=False))


def _forward_of(cls: type) -> Any:
    return getattr(cls, "forward", None)  # a class of TorchScript has none


def _settings(own: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and words among the attributes of a module, or of its configuration."""
    return {name: value for name, value in own.items() if type(value) in _PLAIN_TYPES and name not in _OF_SESSIONS}


_PLAIN_TYPES = {bool, int, float, str}
_OF_SESSIONS = {"training", "_attn_implementation_internal"}
"""What a session itself changes."""


def _patched(own: Mapping[str, Any]) -> bool:
    """Whether a module, or one of those whose work its replacement does, has another `forward` than its class.

    Args:
        own: the module's attributes.
    """
    if "forward" in own:
        return True
    children = own["_modules"]
    return bool(children) and any(child is not None and "forward" in child.__dict__ for child in children.values())


def same(module: nn.Module, forward: Forward, probe: Tensor, error: float = PROBE_ERROR) -> bool:
    """Whether a replacement gives what the module gives; one that fails on the probe does not.

    Args:
        module: the module.
        forward: what may stand in for its own.
        probe: what both are given.
        error: largest difference, relative to the largest element of the row.
    """
    try:
        expected, got = type(module).forward(module, probe), forward(probe)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    return type(expected) is Tensor and agree(expected, got, error)


def agree(expected: Tensor, got: Tensor, error: float) -> bool:
    """Whether numbers are the same but for an error, relative to the largest of their row; each row has such a one."""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return False
    # Cancelling sums may be far off relative to themselves, not relative to the largest of their row.
    size = expected.abs().amax(dim=-1, keepdim=True) if expected.numel() else torch.zeros(1)
    if not bool((size > 0).all()):
        return False  # zeros would agree with anything
    return bool(((got - expected).abs() <= error * size).all())
