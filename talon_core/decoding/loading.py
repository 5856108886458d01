"""From names to a decoder: finds the model, the plugins and the backends."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs

from talon_core.attention import Accelerator, AttentionBackend, DeviceBackend
from talon_core.certificates.standing import standing
from talon_core.decoding.announcing import announce
from talon_core.drafter import DrafterSpec
from talon_core.engine.checked_drafter import checked_features, checked_rank
from talon_core.engine.checked_policy import checked_budget
from talon_core.errors import PluginError, first_line, of_the_machine, written
from talon_core.plugins import specs
from talon_core.plugins.backends import choose_accelerator, choose_attention
from talon_core.plugins.fitting import check_rule, suited_rule
from talon_core.plugins.registry import KINDS, Registry, load_registry
from talon_core.policy import TreePolicy
from talon_core.recipe import Recipe
from talon_core.rule import AcceptanceRule, Lossless
from talon_core.suggestions import did_you_mean

if TYPE_CHECKING:
    from talon_core.decoding.decoder import Decoder

LOGGER = logging.getLogger(__name__)

DEFAULT_MODEL = "smollm2-135m"
AUTO = "auto"
"""In the place of a drafter: the best that is ready for the model, see `choose_drafter`. In the place of a rule: the
one that the policy suits, see `with_rule`."""

DEFAULT_DRAFTER = AUTO
DEFAULT_POLICY = "talon:budget=8,top_k=3,mu=0.15,least=0.03"
DEFAULT_RULE = AUTO
BATCH_SIZE = 8
"""Of several prompts, how many are decoded at a time where nothing is said."""


@attrs.frozen
class Parts:
    """What a decoder is made of besides its target: spec strings, or objects.

    Attributes:
        drafter: for example `ngram`, or "auto" for the best that is ready for the model; ignored without a policy.
        policy: for example `talon:budget=12`; "none" or None decodes one token per pass.
        rule: for example `match`, or "auto" for the one that the policy suits.
        attention: an attention backend; None takes the first that can run.
        accelerate: use an accelerator where one can run; or the name of one.
        graphs: on a GPU, record passes over trees as CUDA graphs where the attention backend allows it.
        lossy: allow a rule that changes the law of the output.
    """

    drafter: str | DrafterSpec = DEFAULT_DRAFTER
    policy: str | TreePolicy | None = DEFAULT_POLICY
    rule: str | AcceptanceRule = DEFAULT_RULE
    attention: str | AttentionBackend | None = None
    accelerate: bool | str = True
    graphs: bool = True
    lossy: bool = False


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
    tokenizer: Any = None,
    **model_options: Any,
) -> "Decoder":
    """Make a decoder.

    Args:
        model: the name of an embedded model, a folder or Hugging Face id for `AutoModelForCausalLM`, or a
            transformers causal LM.
        drafter: a spec such as `ngram` or `draft-model:model=...`, or a `DrafterSpec`; "auto" takes the best that is
            ready for the model.
        policy: a spec such as `talon:budget=12,mu=0.05`, or a `TreePolicy`; None or "none" decodes without drafting.
        rule: a spec such as `match`, or an `AcceptanceRule`; "auto" takes the one that the policy suits.
        attention: an attention backend's name; None takes the fastest that can run.
        accelerate: make the model's own layers faster where that is possible without changing what they compute; or
            the name of the accelerator that is to do it, such as "compile".
        graphs: on a GPU, record passes over trees as CUDA graphs where the attention backend allows it; the output is
            the same without.
        lossy: allow a rule that changes the law of the output; every `Result` says then that it is not `lossless`.
        tokenizer: for a `model` that is an object, or in the place of the one that is loaded with the model.
        model_options: passed to `AutoModelForCausalLM.from_pretrained`, so none for a `model` that is an object;
            `dtype` is float32 on a CPU by default and the checkpoint's own elsewhere. Code that a model's folder brings
            is run only with `trust_remote_code=True`.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, a model that cannot be loaded or cannot verify trees, a drafter that does not
            fit it, or a rule that does not fit the policy or is lossy where that is not allowed.
    """
    parts = Parts(drafter, policy, rule, attention, accelerate, graphs, lossy)
    registry = load_registry()
    check_parts(parts, registry)
    if isinstance(model, str | Path):
        model, own = load_model(str(model), **model_options)
        tokenizer = own if tokenizer is None else tokenizer
    else:
        _check_model(model)
        _check_no_options(model_options)
    return decoder_for_model(model, tokenizer, parts, registry)


def _check_no_options(given: Mapping[str, Any]) -> None:
    """A model that is loaded already takes no options; the name of one of ours may be misspelt."""
    ours = [*attrs.fields_dict(Parts), "tokenizer"]
    for option in given:
        raise ValueError(
            f"load has no option '{option}' for a model that is an object; {did_you_mean(option, ours)}"
            f"it has: {', '.join(ours)}"
        )


def _check_model(model: Any) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"the model is {model!r}; it must be the name of an embedded model, a folder, a Hugging Face id, or a "
            "transformers causal LM"
        )


def check_parts(parts: Parts, registry: Registry) -> None:
    """Look every spec up and build it, so that a typing error is found before a model is loaded.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, or a rule that does not fit the policy or is lossy where that is not allowed.
    """
    for option, kinds in (("graphs", bool), ("lossy", bool), ("accelerate", bool | str)):
        if not isinstance(getattr(parts, option), kinds):
            what = "True or False" if kinds is bool else "True, False or the name of an accelerator"
            raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
                f"{option} is {written(getattr(parts, option))}; it must be {what}"
            )
    policy = _policy(registry, parts)
    if parts.drafter != AUTO and (policy is not None or parts.drafter not in ("none", None)):
        built(registry, "drafter", parts.drafter)
    check_rule(built(registry, "rule", with_rule(parts, registry).rule), policy, parts.lossy)
    if isinstance(parts.attention, str):
        registry.get("attention backend", parts.attention)
    elif parts.attention is not None:
        built(registry, "attention backend", parts.attention)
    if isinstance(parts.accelerate, str):
        registry.get("accelerator", parts.accelerate)


def decoder_for_model(model: Any, tokenizer: Any, parts: Parts, registry: Registry | None = None) -> "Decoder":
    """A decoder for a loaded transformers model; see `load`.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer; None if there is none.
        parts: what else the decoder is made of.
        registry: where names are looked up; by default it is made of what is installed, which takes a moment.
    """
    from talon_core.decoding.decoder import Decoder
    from talon_core.hf.checks import checked_model
    from talon_core.hf.frontend import HFFrontend
    from talon_core.hf.target import BackendError, HFTarget
    from talon_core.runtime.recording import CudaGraphs

    model = checked_model(model)
    registry = registry if registry is not None else load_registry()
    parts = settled(parts, model, registry)
    policy = _policy(registry, parts)
    rule = built(registry, "rule", parts.rule)
    drafter = built(registry, "drafter", parts.drafter) if policy is not None else None
    attention = choose_attention(registry, parts.attention, model.device, model.dtype)
    accelerator = choose_accelerator(registry, parts.accelerate, model.device, model.dtype)
    layers = model.config.get_text_config().num_hidden_layers
    features: tuple[int, ...] = ()
    if drafter is not None:
        features = checked_features(drafter, layers)
    whole = len({parameter.device for parameter in model.parameters()}) == 1
    graphs = CudaGraphs if parts.graphs and model.device.type == "cuda" and whole else None
    while True:
        own = graphs if isinstance(attention, DeviceBackend) else None
        try:
            target = HFTarget(model, attention, accelerator, features, tokenizer, own)
            break
        except BackendError:
            if parts.attention is not None or not isinstance(attention, DeviceBackend):
                raise
            # nobody has asked for it, and it may lack what this model needs
            attention = choose_attention(registry, None, model.device, model.dtype, without=attention.name)
    announce(target, drafter, policy, rule)
    return Decoder(target, rule, policy, drafter, HFFrontend(model, tokenizer), lossy=parts.lossy)


def settled(parts: Parts, model: Any, registry: Registry | None = None) -> Parts:
    """The parts as they are for a loaded model: with the names of the drafter and the rule that "auto" stands for.

    Args:
        parts: what was asked for.
        model: a transformers causal LM.
        registry: as for `decoder_for_model`.
    """
    registry = registry if registry is not None else load_registry()
    parts = with_rule(parts, registry)
    if parts.drafter != AUTO or parts.policy in ("none", None):
        return parts
    return attrs.evolve(parts, drafter=choose_drafter(registry, model))


def with_rule(parts: Parts, registry: Registry) -> Parts:
    """The parts with the name of the rule that "auto" stands for; that takes no model.

    Raises:
        LookupError: if the policy suits a rule that is not registered.
    """
    if parts.rule != AUTO:
        return parts
    return attrs.evolve(parts, rule=suited_rule(registry, _policy(registry, parts)))


def is_lossless(parts: Parts, registry: Registry) -> Lossless:
    """Whether what these parts decode has the target's law; "claimed" where a plugin says so alone."""
    return standing(built(registry, "rule", with_rule(parts, registry).rule), _policy(registry, parts))


def choose_drafter(registry: Registry, model: Any) -> str:
    """The name of the drafter that is ready for a model and has the highest rank, the first name among equals.

    A drafter that fails at saying its rank is left out, with a warning: nobody has asked for it.

    Raises:
        LookupError: if none is ready, which happens only where TALON's own drafters are not installed.
    """
    best: tuple[int, str] | None = None
    for name in registry.names("drafter"):
        cls: type[DrafterSpec] = registry.get("drafter", name).cls
        try:
            rank = checked_rank(cls, model)
        except PluginError as error:
            LOGGER.warning("left out of the drafters to choose from: %s", error)
            continue
        if rank is not None and (best is None or rank > best[0]):
            best = (rank, name)
    if best is None:
        raise LookupError(f"no drafter is ready for this model; name one with its files{registry.failed}")
    return best[1]


def _policy(registry: Registry, parts: Parts) -> TreePolicy | None:
    return None if parts.policy in ("none", None) else built(registry, "tree policy", parts.policy)


def built(registry: Registry, kind: str, given: Any) -> Any:
    """What a spec describes, or the object that was given in its place.

    Args:
        registry: where names are looked up.
        kind: a key of `talon_core.plugins.registry.KINDS`.
        given: a spec or an object.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, or an object of another kind.
    """
    interface = KINDS[kind][1]
    part = specs.build(registry, kind, given) if isinstance(given, str) else given
    if not isinstance(part, interface):
        instead = f", as {given.__name__}() and not {given.__name__}" if isinstance(given, type) else ""
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"the {kind} is {given!r}; it must be a spec, as `talon list` shows them, "
            f"or an object of class {interface.__name__}{instead}"
        )
    if isinstance(part, TreePolicy):
        for which in ("budget", "draft_budget"):
            checked_budget(part, which)
    return part


@overload
def build(kind: Literal["tree policy"], spec: str) -> TreePolicy: ...


@overload
def build(kind: Literal["drafter"], spec: str) -> DrafterSpec: ...


@overload
def build(kind: Literal["rule"], spec: str) -> AcceptanceRule: ...


@overload
def build(kind: Literal["attention backend"], spec: str) -> AttentionBackend: ...


@overload
def build(kind: Literal["accelerator"], spec: str) -> Accelerator: ...


@overload
def build(kind: Literal["recipe"], spec: str) -> Recipe: ...


def build(kind: str, spec: str) -> Any:
    """Make the object that a spec describes, out of what is registered on this machine.

    Args:
        kind: "tree policy", "drafter", "rule", "attention backend", "accelerator" or "recipe".
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


def load_model(
    name: str,
    *,
    trust_remote_code: bool = False,
    trusted_with: str = "--trust-remote-code (from Python: trust_remote_code=True)",
    **options: Any,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    Args:
        name: the name of an embedded model, a folder, or a Hugging Face id.
        trust_remote_code: run code that the folder brings, where transformers has none for such a model. Nobody is
            asked.
        trusted_with: what a user has to give for that, for the sentence that says so.
        options: for `AutoModelForCausalLM.from_pretrained`.

    Raises:
        ValueError: if it cannot be found or read; the sentence says what would be right.
    """
    from talon_core.models import resolve

    if not isinstance(trust_remote_code, bool):  # transformers takes None for leave to ask
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad option
            f"trust_remote_code is {trust_remote_code!r}; it must be True or False"
        )
    path = resolve(name)
    try:
        return _read(path, _where(path), {**options, "trust_remote_code": trust_remote_code})
    except Exception as error:  # a damaged file may raise anything
        if of_the_machine(error):
            raise  # nothing is wrong with the model
        if not trust_remote_code and "trust_remote_code=True" in str(error):
            raise ValueError(
                f"model '{name}' comes with code of its own, which is run only where that is asked for: look at the "
                f"code, and if you trust it give {trusted_with}"
            ) from error
        raise ValueError(
            f"model '{name}' cannot be loaded: {_reason(error)} "
            "Give the name of an embedded model (talon list models), a folder, or a Hugging Face id."
        ) from error


def _where(path: str) -> dict[str, bool]:
    """Options for everything that is read of a model: of a folder none."""
    from talon_core.models.hub import only_local

    return {} if Path(path).is_dir() else {"local_files_only": only_local(path)}


def _read(path: str, where: Mapping[str, bool], options: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

    from talon_core.models.sizes import check_sizes

    if Path(path).is_dir() and "gguf_file" not in options:  # with one there need be no config.json
        check_sizes(PretrainedConfig.get_config_dict(path)[0])
    on_cpu = not torch.cuda.is_available()
    options.setdefault("dtype", torch.float32 if on_cpu else "auto")
    if not on_cpu:
        options.setdefault("device_map", "cuda")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path, **where, **options, ignore_mismatched_sizes=True, output_loading_info=True
    )
    model, info = loaded
    _check_weights(info)
    tokenizer = AutoTokenizer.from_pretrained(path, **where, trust_remote_code=options["trust_remote_code"])
    return model.eval(), tokenizer


def _check_weights(info: Mapping[str, Any]) -> None:
    """transformers fills weights that are missing, or of another shape, with random numbers."""
    for weight, found, wanted in sorted(info["mismatched_keys"], key=str):
        raise ValueError(
            f"its weight {weight} has shape {tuple(found)} where its configuration asks for {tuple(wanted)}."
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(
            f"it lacks {len(missing)} of the weights that its configuration asks for, such as {missing[0]}."
        )


def _reason(error: Exception) -> str:
    """The first line of what an error says, with its type where that is no sentence for users."""
    first = first_line(error)
    if first.endswith(":"):
        first = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
    said = first if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {first}"
    return f"{said.rstrip('.')}."
