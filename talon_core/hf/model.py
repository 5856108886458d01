"""What TALON does to a transformers model for the time of a generation: evaluation mode, and TALON's attention."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from talon_core.errors import BusyError
from talon_core.hf.attention import ATTENTION_NAME
from talon_core.runtime.modules import Modules


@contextmanager
def evaluating(modules: Modules) -> Iterator[bool]:
    """While entered, a model is in evaluation mode, and what was compiled of it runs as it is written.

    A compiler would trace into our kernels. After it each module is back in the mode it was in.

    Args:
        modules: the model's.

    Yields:
        Whether nothing had to be done for that.
    """
    training, compiled = modules.mode()
    with _UNCOMPILED if compiled else nullcontext():
        try:
            for module in training:
                module.training = False
            yield not training and not compiled
        finally:
            for module in training:
                module.training = True


class _Uncompiled:
    """Switches the compiler off for as long as somebody is inside: the switch is one for the whole process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._stance: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._stance = torch.compiler.set_stance("force_eager")
                self._stance.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stance.__exit__(None, None, None)


_UNCOMPILED = _Uncompiled()


class AttentionSwitch:
    """Switches a model's attention to TALON's and back.

    transformers' own way walks through all modules. What it changes the first time, which is configurations, is noted,
    and changed directly from then on.

    Args:
        model: a transformers causal LM.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._config: Any = None
        self._changes: list[tuple[dict[str, Any], str, Any]] = []  # a configuration's attributes, a name, TALON's value
        self._have: list[tuple[dict[str, Any], Any]] = []  # attributes of modules, and the configuration among them

    @contextmanager
    def switched(self) -> Iterator[None]:
        """While entered, the model's attention is TALON's.

        Raises:
            BusyError: if it is already.
            ValueError: if the model stays with another one.
        """
        model = self._model
        with _SWITCHING:
            check_free(model)
            undo = self._again() or self._thoroughly()
        try:
            yield
        finally:
            with _SWITCHING:
                undo()

    def _again(self) -> Callable[[], None] | None:
        """Switch what is known to be switched; None if that is not known, or does not do any more."""
        if self._config is not self._model.config or not all(own.get("config") is one for own, one in self._have):
            return None
        before = [(values, name, values.get(name)) for values, name, _ in self._changes]
        for values, name, value in self._changes:
            values[name] = value

        def undo() -> None:
            for values, name, value in before:
                values[name] = value

        if implementation(self._model) == ATTENTION_NAME:
            return undo
        undo()
        return None

    def _thoroughly(self) -> Callable[[], None]:
        model = self._model
        name = implementation(model)
        configs = [vars(config) for config in configs_of(model.modules())]
        before = [dict(values) for values in configs]
        set_implementation(model, ATTENTION_NAME)
        if getattr(type(model), "set_attn_implementation", None) is PreTrainedModel.set_attn_implementation:
            self._config = model.config
            self._have = [(one.__dict__, one.__dict__["config"]) for one in model.modules() if "config" in one.__dict__]
            self._changes = [
                (values, attribute, value)
                for values, old in zip(configs, before, strict=True)
                for attribute, value in values.items()
                if old.get(attribute) is not value
            ]
        return partial(set_implementation, model, name)


def configs_of(modules: Iterable[nn.Module]) -> list[PreTrainedConfig]:
    """Every configuration of a model's modules, and those inside them, each once."""
    found: dict[int, PreTrainedConfig] = {}
    left = [module.__dict__.get("config") for module in modules]
    while left:
        config = left.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            left.extend(vars(config).values())
    return list(found.values())


_SWITCHING = Lock()
"""Held while a model is looked at and switched, so that of two threads one is refused."""


def check_free(model: Any) -> None:
    """Make sure that no session runs on the model: each switches its attention, and two would not know whose it is.

    Raises:
        BusyError: if one does.
    """
    if implementation(model) == ATTENTION_NAME:
        raise BusyError("this model is already being decoded; finish or close the running generation first")


def implementation(model: Any) -> Any:
    """The model's attention implementation, as `set_implementation` takes it."""
    return model.config._attn_implementation


def set_implementation(model: Any, name: str) -> None:
    """Switch the model's attention implementation.

    Raises:
        ValueError: if the model stays with another one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_attn_implementation(name)
    if implementation(model) != name:
        raise ValueError(
            f"{type(model).__name__} does not take its attention from transformers' AttentionInterface "
            f"(it stays on '{implementation(model)}'), so it cannot verify a tree; choose another target"
        )
