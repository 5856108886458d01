"""What TALON does to a transformers model for the time of a generation: it listens, and switches its attention."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from talon_core.drafter import FINAL_STATE
from talon_core.hf.attention import ATTENTION_NAME


@contextmanager
def captured_states(model: Any, features: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """While entered, each pass of the model leaves the hidden states that were asked for in the dictionary.

    Args:
        model: a transformers causal LM.
        features: as in `ModelRunner`.
    """
    captured: dict[int, Tensor] = {}

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *out: Any, at: int) -> None:
        state = out[0] if out else (args[0] if args else kwargs["hidden_states"])
        if at == FINAL_STATE:
            state = state.last_hidden_state
        captured[at] = state[0] if isinstance(state, tuple) else state

    with ExitStack() as stack:
        layers = decoder_layers(model) if features else nn.ModuleList()
        for wanted in features:
            hook = partial(keep, at=wanted)
            if wanted == FINAL_STATE:
                handle = model.get_decoder().register_forward_hook(hook, with_kwargs=True)
            elif wanted == 0:
                handle = layers[0].register_forward_pre_hook(hook, with_kwargs=True)
            else:
                handle = layers[wanted - 1].register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield captured


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While entered, the model is in evaluation mode; then each of its modules is back in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


def check_free(model: Any) -> None:
    """Make sure that no session runs on the model: each switches its attention, and two would not know whose it is.

    Raises:
        RuntimeError: if one does.
    """
    if implementation(model) == ATTENTION_NAME:
        raise RuntimeError("this model is already being decoded; finish or close the running generation first")


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


def decoder_layers(model: Any) -> nn.ModuleList:
    """The model's decoder layers, in order.

    Raises:
        ValueError: if no module list of the configured length is found.
    """
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise ValueError(f"no list of {count} decoder layers found in {type(model).__name__}")
