"""From names to a decoder: finds the model, the plugins and the backends."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs

from talon_core.attention import Accelerator, AttentionBackend, DeviceBackend
from talon_core.basics.suggestions import did_you_mean
from talon_core.costs import Costs
from talon_core.decoding.announcing import announce, announce_schedule
from talon_core.decoding.source import Source
from talon_core.defaults import (
    AUTO,
    DEFAULT_DRAFTER,
    DEFAULT_MODEL,
    DEFAULT_POLICY,
    DEFAULT_RULE,
    DEFAULT_SCHEDULE,
)
from talon_core.drafter import DrafterSpec
from talon_core.engine.bounds import Bounds
from talon_core.engine.checked_drafter import checked_features
from talon_core.engine.checked_policy import checked_budget
from talon_core.errors import LostError, PluginError, one_line, written
from talon_core.models.loading import load_model
from talon_core.peer import Peer
from talon_core.plugins.backends import attention_backends, choose_accelerator
from talon_core.plugins.chosen import Chosen
from talon_core.plugins.parts import Parts, Resolved, built, resolve
from talon_core.plugins.registry import KINDS, load_registry
from talon_core.policy import TreePolicy
from talon_core.recipe import Recipe
from talon_core.rule import AcceptanceRule
from talon_core.schedule import Schedule

if TYPE_CHECKING:
    from torch import device

    from talon_core.decoding.decoder import Decoder
    from talon_core.hf.target import HFTarget

LOGGER = logging.getLogger(__name__)

BATCH_SIZE = 8
"""Of several prompts, how many are decoded at a time where nothing is said."""


def load(
    model: Any = DEFAULT_MODEL,
    *,
    drafter: str | DrafterSpec = DEFAULT_DRAFTER,
    policy: str | TreePolicy | None = DEFAULT_POLICY,
    rule: str | AcceptanceRule = DEFAULT_RULE,
    attention: str | AttentionBackend | None = None,
    accelerate: bool | str = True,
    graphs: bool = True,
    lossy: bool = False,
    schedule: str | Schedule | None = DEFAULT_SCHEDULE,
    draft_on: str = AUTO,
    tokenizer: Any = None,
    bounds: Bounds = Bounds(),  # noqa: B008 - it is frozen
    costs: Costs | None = None,
    **model_options: Any,
) -> "Decoder":
    """Make a decoder.

    Args:
        model: the name of an embedded model, a folder or Hugging Face id for `AutoModelForCausalLM`, a GGUF file, or a
            transformers causal LM. On a CPU the weights of embedded models and GGUF files stay in the file's blocks.
        drafter: what drafts; "auto" is the best that is ready for the model. A spec such as `ngram` or
            `draft-model:model=...`, or a `DrafterSpec`. One that is named without a policy drafts
            nothing, and a warning says so.
        policy: what shapes the trees; "none" decodes without drafting. A spec such as `talon:budget=12,mu=0.05`, the
            name of a preset, to which options may be added as in a spec, or a `TreePolicy`; None is "none". "default"
            is the preset of that name: `talon-cost`, whose trees follow what passes are measured to take. A preset of
            your own that is called so is taken for a model on the kind of device that it was found on alone.
        rule: what is accepted of a tree; "auto" is the policy's default rule. A spec such as `match`, or an
            `AcceptanceRule`.
        attention: what computes tree attention; by default the fastest that can run. A name, or an `AttentionBackend`.
        accelerate: make the model's own layers faster where that is possible without changing what they compute. The
            name of an accelerator, such as "compile", takes that one.
        graphs: on a GPU, record passes over trees as CUDA graphs where the attention backend allows it. The output is
            the same without.
        lossy: allow a rule that changes what the model says. Every `Result` says then that it is not `lossless`.
        schedule: what is prepared while the target verifies; "auto" is what `talon tune --schedule` has kept with the
            policy's preset for this machine, model and drafter, and otherwise "sync", which drafts and verifies in
            turn, as None does. A spec such as `cached:budget=24`, or a `Schedule`.
        draft_on: where what is prepared is drafted: "thread" is a thread of this process. "cpu:1" is a process that has
            so many cores, and "cuda:1" one on this GPU; it opens the drafter anew. "auto" is the place that was kept
            with the schedule that "auto" stands for, and otherwise the thread.
        tokenizer: for a `model` that is an object, or in the place of the one that is loaded with the model.
        bounds: how many sequences are decoded at a time, with how much memory.
        costs: what passes take on this machine, such as a profile of `talon profile`; measured while it decodes by
            default.
        model_options: passed to `AutoModelForCausalLM.from_pretrained`, so none for a `model` that is an object;
            `dtype` is float32 on a CPU by default and the checkpoint's own elsewhere, and `dequantize` makes plain
            parameters of weights in blocks. Code that a model's folder brings is run only with
            `trust_remote_code=True`.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, a model that cannot be loaded or cannot verify trees, a drafter that does not
            fit it, a rule that does not fit the policy or is lossy where that is not allowed, a schedule without a
            policy, or a place to draft on that this machine has not.
    """
    parts = Parts(drafter, policy, rule, attention, accelerate, graphs, lossy, schedule, draft_on)
    resolved = resolve(parts, load_registry())
    resolved.check_place()
    _check_tokenizer(tokenizer)
    source = Source(str(model), model_options) if isinstance(model, str | Path) else None
    if isinstance(model, str | Path):
        model, own = load_model(str(model), **model_options)
        tokenizer = own if tokenizer is None else tokenizer
    else:
        _check_model(model)
        _check_no_options(model_options)
    return decoder_for_model(model, tokenizer, resolved, costs, source, bounds)


def _check_no_options(given: Mapping[str, Any]) -> None:
    """A model that is loaded already takes no options; the name of one of ours may be misspelt."""
    ours = [*attrs.fields_dict(Parts), "tokenizer", "bounds", "costs"]
    for option in given:
        raise ValueError(
            f"load has no option '{option}' for a model that is an object; {did_you_mean(option, ours)}"
            f"it has: {', '.join(ours)}"
        )


def _check_model(model: Any) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"the model is {model!r}; it must be the name of an embedded model, a folder, a GGUF file, a Hugging Face "
            "id, or a transformers causal LM"
        )


def _check_tokenizer(tokenizer: Any) -> None:
    """Refuse what cannot make tokens of a text, or a text of tokens, which would be seen with the first one."""
    called = all(callable(getattr(tokenizer, name, None)) for name in ("__call__", "decode", "convert_ids_to_tokens"))
    if tokenizer is not None and not (called and hasattr(tokenizer, "chat_template")):
        raise ValueError(
            f"the tokenizer is {written(tokenizer)}; it must be a tokenizer, as AutoTokenizer.from_pretrained returns "
            "it, or None"
        )


def decoder_for_model(
    model: Any,
    tokenizer: Any,
    parts: Parts | Resolved,
    costs: Costs | None = None,
    source: Source | None = None,
    bounds: Bounds = Bounds(),  # noqa: B008 - it is frozen
) -> "Decoder":
    """A decoder for a loaded transformers model; see `load`.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer; None if there is none.
        parts: what else the decoder is made of; what is not resolved yet is looked up in what is installed.
        costs: as `load` takes them.
        source: what the model was loaded by; None where nobody knows.
        bounds: as `load` takes them.
    """
    from talon_core.decoding.decoder import Decoder
    from talon_core.hf.frontend import HFFrontend

    target, resolved = target_for_model(model, tokenizer, parts)
    model = target.model
    if resolved.chosen is not None:
        resolved = resolved.found_with(_compared(resolved.chosen, model, target))

    def made(own: Resolved) -> Decoder:
        return Decoder(
            target,
            own.rule,
            own.policy,
            own.drafter,
            HFFrontend(model, tokenizer),
            lossy=own.parts.lossy,
            schedule=own.schedule,
            draft_on=own.parts.draft_on,
            source=source,
            bounds=bounds,
            costs=costs,
        )

    chosen, decoder = resolved.chosen, None
    if chosen is None:
        return made(resolved)
    try:
        decoder = made(resolved)
    except (ValueError, OSError, PluginError, LostError) as error:
        if resolved.schedule is None:
            raise
        chosen = chosen.in_turn(f"which cannot be used: {one_line(error)}")  # nobody has asked for this very schedule
    if decoder is None:
        decoder = made(resolved.found_with(chosen))
    announce_schedule(chosen)
    return decoder


def target_for_model(model: Any, tokenizer: Any, parts: Parts | Resolved) -> "tuple[HFTarget, Resolved]":
    """What verifies for a loaded transformers model, before any drafter is opened.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer; None if there is none.
        parts: as `decoder_for_model` takes them.

    Returns:
        The target, with the hidden states that the drafter asks for, and the parts, with the drafter that "auto" stands
        for.

    Raises:
        LookupError: for an unknown name, or if no drafter is ready for the model.
        ValueError: for a bad option, a model that cannot verify trees, or a drafter that does not fit it.
    """
    from talon_core.hf.checks import checked_model

    model = checked_model(model)
    resolved = (parts if isinstance(parts, Resolved) else resolve(parts, load_registry())).for_model(model)
    target, why = _target(model, tokenizer, resolved)
    announce(target, resolved.drafter, resolved.policy, resolved.rule, without_graphs=why)
    return target, resolved


def _compared(chosen: Chosen, model: Any, target: "HFTarget") -> Chosen:
    """What "auto" stands for as the schedule, where a model and what computes it are known."""
    if chosen.preset is None:
        return chosen
    from talon_core.runtime.weights import weights_hash

    accelerator = target.accelerator
    here = {
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weight_bits": target.weight_bits,
        "attention": target.attention.name,
        "accelerator": None if accelerator is None else accelerator.name,
    }
    return chosen.compared(here=here, weights=weights_hash(model))


def _target(model: Any, tokenizer: Any, resolved: Resolved) -> "tuple[HFTarget, str | None]":
    """The target, and why its passes are not recorded as CUDA graphs, None if they are.

    A backend that nobody has asked for is replaced if it fails at this model, and such an accelerator is left out, both
    with a warning.
    """
    from talon_core.hf.checks import devices_of
    from talon_core.hf.experts import about_experts
    from talon_core.hf.runner import AcceleratorError
    from talon_core.hf.target import BackendError, HFTarget
    from talon_core.runtime.recording import CudaGraphs

    parts, registry, layers = resolved.parts, resolved.registry, model.config.get_text_config().num_hidden_layers
    backends = attention_backends(registry, parts.attention, model.device, model.dtype)
    attention = next(backends)
    accelerator = choose_accelerator(registry, parts.accelerate, model.device, model.dtype)
    features = checked_features(resolved.drafter, layers) if resolved.drafter is not None else ()
    nodes = checked_budget(resolved.policy) if resolved.policy is not None else 1
    failed: list[tuple[str, BackendError]] = []
    while True:
        why = without_graphs(parts.graphs, devices_of(model), attention)
        graphs = CudaGraphs if why is None else None
        try:
            target = HFTarget(model, attention, accelerator, features, tokenizer, graphs, nodes=nodes)
            break
        except AcceleratorError as error:
            if parts.accelerate is not True:
                raise
            LOGGER.warning("the model's own layers run without an accelerator: %s", error)
            accelerator = None
        except BackendError as error:
            failed.append((attention.name, error))
            other = next(backends, None)
            if other is None:
                raise failed[0][1] from None
            attention = other
    for name, fault in failed:
        why_not = one_line(fault.__cause__ or fault)  # its advice, another backend, is what happened here
        LOGGER.warning("attention backend '%s' takes the place of '%s': %s", attention.name, name, why_not)
    failure = target.runner.executor.failure if why is None else None  # on a host it is about no graphs
    if failure is not None and about_experts(model):
        LOGGER.warning("passes run without CUDA graphs%s", about_experts(model))
    return target, why or failure


def without_graphs(asked: bool, devices: "Collection[device]", attention: AttentionBackend) -> str | None:
    """Why passes over trees are not recorded as CUDA graphs, as the end of a sentence, None if they are.

    Args:
        asked: whether they are wanted.
        devices: where the model's parameters are.
        attention: what computes attention.
    """
    if not asked:
        return "graphs=False"
    if len(devices) > 1:
        return f"the model is on {len(devices)} devices"
    if any(each.type != "cuda" for each in devices):
        return "the model is not on a GPU"
    if not isinstance(attention, DeviceBackend):
        return f"attention backend '{attention.name}' needs the host"
    return None


@overload
def build(kind: Literal["tree policy"], spec: str) -> TreePolicy: ...


@overload
def build(kind: Literal["drafter"], spec: str) -> DrafterSpec: ...


@overload
def build(kind: Literal["rule"], spec: str) -> AcceptanceRule: ...


@overload
def build(kind: Literal["schedule"], spec: str) -> Schedule: ...


@overload
def build(kind: Literal["attention backend"], spec: str) -> AttentionBackend: ...


@overload
def build(kind: Literal["accelerator"], spec: str) -> Accelerator: ...


@overload
def build(kind: Literal["recipe"], spec: str) -> Recipe: ...


@overload
def build(kind: Literal["peer"], spec: str) -> Peer: ...


def build(kind: str, spec: str) -> Any:
    """Make the object that a spec describes, out of what is registered on this machine.

    Args:
        kind: "tree policy", "drafter", "rule", "schedule", "attention backend", "accelerator", "recipe" or "peer".
        spec: for example `talon:budget=60,mu=0.03`.

    Raises:
        LookupError: for an unknown name.
        ValueError: for an unknown kind, an unknown or missing option, or a bad value; the sentence says what would be
            right.
        PluginError: if the class cannot be made for any other reason.
    """
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r} of things that are registered; kinds are {', '.join(KINDS)}")
    if not isinstance(spec, str):
        raise ValueError(  # noqa: TRY004 - as for every bad spec
            f"the spec of a {kind} is {spec!r}; it must be a text such as name:option=value"
        )
    return built(load_registry(), kind, spec)
