"""The hidden states of a causal LM, caught where its layers give them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from talon_core.drafter import FINAL_STATE


@contextmanager
def captured_states(
    model: Any, features: Sequence[int], layers: nn.ModuleList | None = None
) -> Iterator[dict[int, Tensor]]:
    """While entered, each pass of the model leaves the hidden states that were asked for in the dictionary.

    Args:
        model: a transformers causal LM.
        features: as in `DrafterSpec.features`.
        layers: its decoder layers; looked for by default.
    """
    captured: dict[int, Tensor] = {}

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *out: Any, at: int) -> None:
        state = out[0] if out else (args[0] if args else kwargs["hidden_states"])
        if at == FINAL_STATE:
            state = state.last_hidden_state
        captured[at] = state[0] if isinstance(state, tuple) else state

    with ExitStack() as stack:
        if layers is None:
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
