"""What a model must be for its passes to be TALON's: loaded, not quantised in a way that mixes tokens, not compiled."""

from typing import Any

from torch import Tensor, nn

MIXING = "torch.ao.nn.quantized"
"""Modules of torch's eager-mode quantisation: the scale of a layer's input is that of all its tokens together."""


def checked_model(model: Any) -> Any:
    """The causal LM that was given, without the wrapper that `torch.compile(model)` puts around it.

    Raises:
        ValueError: if it is no transformers causal LM, has no weights, or is quantised in a way in which a token's
            logits depend on the others of the pass.
    """
    while _is_wrapper(type(model)):
        model = model._orig_mod
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
        raise ValueError(
            f"the model is a {type(model).__name__}; it must be a transformers causal LM, as "
            "AutoModelForCausalLM.from_pretrained returns it"
        )
    if model.get_output_embeddings() is None:
        raise ValueError(f"{type(model).__name__} has no output layer; the model must be a transformers causal LM")
    for name, module in model.named_modules():
        if type(module).__module__.startswith(MIXING) or type(module).__module__.startswith("torch.nn.quantized"):
            raise ValueError(
                f"{type(model).__name__} is quantised by torch.ao ({name} is a {type(module).__module__}."
                f"{type(module).__name__}): what such a layer gives for one token depends on the others of the pass, "
                "so a tree of tokens cannot be verified; choose a model that is not quantised, or by weights alone"
            )
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"{type(model).__name__} has no weights: {name} is on the device 'meta'; "
                "load them with AutoModelForCausalLM.from_pretrained"
            )
    return model


def mode_of(model: nn.Module) -> tuple[list[nn.Module], bool]:
    """Which modules are in training mode, and whether any was compiled; asked in each round, so all in one quick walk.

    A module is compiled by `module.compile()`, as a wrapper, or by its `forward`.
    """
    training: list[nn.Module] = []
    compiled = False
    classes, seen = set(), set()
    left: list[nn.Module | None] = [model]
    while left:
        module = left.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        classes.add(type(module))
        own = module.__dict__
        if own.get("training"):  # a wrapper has it of what it wraps
            training.append(module)
        if own.get("_compiled_call_impl") is not None or ("forward" in own and _is_compiled(own["forward"])):
            compiled = True
        children = own["_modules"]
        if children:
            left.extend(children.values())
    return training, compiled or any(_is_wrapper(cls) or _is_compiled(cls.forward) for cls in classes)


def _is_wrapper(cls: type) -> bool:
    """Whether `torch.compile` returns this class for a module; asked without importing the compiler."""
    return cls.__name__ == "OptimizedModule" and cls.__module__ == "torch._dynamo.eval_frame"


def _is_compiled(function: Any) -> bool:
    return "_torchdynamo_orig_callable" in getattr(function, "__dict__", {})


def vocabulary_size(model: Any) -> int:
    """How many token ids a causal LM has logits for."""
    head = model.get_output_embeddings()
    for size in (_rows(getattr(head, "weight", None)), getattr(head, "out_features", None)):
        if size is not None:
            return int(size)
    return int(model.config.get_text_config().vocab_size)


def _rows(weight: Any) -> int | None:
    # weights that are packed have another shape
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point() else None


def output_weight(model: Any) -> Tensor:
    """The matrix of a causal LM's output layer, shape `(vocab, hidden)`, for drafters that read it.

    Raises:
        ValueError: if there is no matrix of floating-point numbers, because it is quantised or was exchanged.
    """
    return _readable_weight(model.get_output_embeddings(), "output layer")


def embedding_weight(model: Any) -> Tensor:
    """The table of a causal LM's token embeddings, shape `(vocab, width)`; raises as `output_weight` does."""
    return _readable_weight(model.get_input_embeddings(), "token embedding")


def _readable_weight(module: Any, what: str) -> Tensor:
    weight = getattr(module, "weight", None)
    if _rows(weight) is None:
        raise ValueError(
            f"the model's {what} is a {type(module).__name__} whose weight cannot be read; is it quantised? "
            "Choose a drafter that does not read it, such as 'ngram'"
        )
    assert isinstance(weight, Tensor)
    return weight
