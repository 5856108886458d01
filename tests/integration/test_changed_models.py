"""Models that are not as their classes make them: compiled, quantised, pruned, patched. They work or are refused."""

import copy
import subprocess
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune, weight_norm
from transformers import LlamaConfig, LlamaForCausalLM

import talon_core
from talon_core.plugins.registry import load_registry
from talon_drafters import MedusaRecipe
from talon_drafters.medusa.training import MedusaTraining
from talon_tests.tiny_models import tiny_model

PROMPT = torch.tensor([[5, 9, 33, 9, 33, 41, 5, 9]])
PARTS: dict[str, Any] = {"policy": "talon:budget=6,top_k=2", "drafter": "ngram"}


def answer(model: Any, tokens: int = 12) -> list[int]:
    out = model.generate(
        PROMPT, max_new_tokens=tokens, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(PROMPT)
    )
    return [int(token) for token in out[0, 8:]]


class Halved(nn.Linear):
    """A subclass, as those of bitsandbytes are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 0.5


class Adapted(nn.Module):
    """A wrapper, as peft's are."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.low = nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.low(x)


class Doubled(torch.Tensor):
    """A tensor whose memory does not hold its numbers."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            x, weight, *rest = (each.as_subclass(torch.Tensor) if isinstance(each, cls) else each for each in args)
            return nn.functional.linear(x, weight * 2, *rest)
        return super().__torch_function__(function, types, args, kwargs or {})


class Third(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 3


def subclassed(model: Any) -> None:
    for part in (model.model.layers[0].mlp, model.model.layers[2].mlp):
        new = Halved(part.up_proj.in_features, part.up_proj.out_features, bias=False)
        new.weight = part.up_proj.weight
        part.up_proj = new


def adapted(model: Any) -> None:
    torch.manual_seed(1)
    model.model.layers[0].mlp.down_proj = Adapted(model.model.layers[0].mlp.down_proj)
    model.model.layers[1].self_attn.q_proj = Adapted(model.model.layers[1].self_attn.q_proj)


def of_other_tensors(model: Any) -> None:
    for linear in some(model):
        linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Doubled), requires_grad=False)


def some(model: Any) -> list[nn.Linear]:
    return [model.model.layers[0].mlp.up_proj, model.model.layers[1].self_attn.q_proj, model.lm_head]


def pruned(model: Any) -> None:
    for linear in some(model):
        prune.l1_unstructured(linear, "weight", amount=0.4)


def parametrized(model: Any) -> None:
    for linear in some(model):
        parametrize.register_parametrization(linear, "weight", Third())
    parametrize.register_parametrization(model.model.layers[2].input_layernorm, "weight", Third())


def normed(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still used
        for linear in some(model):
            weight_norm(linear)
            linear.weight_g.data *= 0.5


def hooked(model: Any) -> None:
    for linear in some(model):
        linear.register_forward_hook(lambda _module, _args, out: out * 0.5)
        linear.register_forward_pre_hook(lambda _module, args: (args[0] * 0.9,))


def transposed(model: Any) -> None:
    for linear in some(model):
        linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())


def tied(model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight


def patched(model: Any) -> None:
    linear = model.model.layers[0].mlp.gate_proj
    linear.forward = lambda x: nn.functional.linear(x, linear.weight) * 0.25


def with_another_body(model: Any) -> None:
    model.model = copy.deepcopy(model.model)  # whose configuration is its own
    model.model.layers[0].mlp.gate_proj.weight.data *= 0.25


def of_three_layers(model: Any) -> None:
    del model.model.layers[3]
    model.config.num_hidden_layers = 3


def with_another_configuration_of_the_body(model: Any) -> None:
    model.model.config = copy.deepcopy(model.config)
    model.model.layers[0].mlp.gate_proj.weight.data *= 0.25


CHANGES: list[Callable[[Any], None]] = [
    *(subclassed, adapted, of_other_tensors, pruned, parametrized, normed, hooked, transposed, tied, patched),
    *(with_another_body, of_three_layers, with_another_configuration_of_the_body),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_decoded_as_it_decodes_itself(change: Callable[[Any], None]) -> None:
    model = tiny_model("llama")
    before = answer(model)
    loaded_before = talon_core.load(model, **PARTS)
    change(model)
    expected = answer(model)
    assert change in (transposed,) or expected != before
    for decoder in (talon_core.load(model, **PARTS), loaded_before, talon_core.load(model)):
        assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected


@pytest.mark.parametrize("prepared", [False, True])
def test_a_layer_that_keeps_another_attention_is_refused_in_words(prepared: bool) -> None:
    """Its configuration is its own, and transformers does not reach it: it would see the tree as a text."""
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    expected = answer(model)
    if prepared:
        assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected
    layer = model.model.layers[1]
    model.model.layers[1] = copy.deepcopy(layer)
    for call in (lambda: decoder.generate(PROMPT, max_new_tokens=12), lambda: talon_core.load(model)):
        with pytest.raises(ValueError, match=r"layers\.1\.self_attn of .* has a configuration of its own"):
            call()
    assert answer(model) == expected  # nothing is left of it
    model.model.layers[1].self_attn.config = model.config
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected


def gained_a_copy(model: Any) -> None:
    model.model.layers.append(copy.deepcopy(model.model.layers[3]))
    model.model.layers[4].self_attn.layer_idx = 4
    model.config.num_hidden_layers = 5


def twice(model: Any) -> None:
    model.model.layers[2] = model.model.layers[1]


def the_same_place(model: Any) -> None:
    model.model.layers[2].self_attn.layer_idx = 1


def windowed(model: Any) -> None:
    model.config.sliding_window = 4


def without_attention(model: Any) -> None:
    del model.model.layers[3]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (gained_a_copy, r"layers\.4\.self_attn of LlamaForCausalLM has a configuration of its own"),
        (twice, r"layers\.1\.self_attn and model\.layers\.2\.self_attn of .* both have layer_idx 1"),
        (the_same_place, r"layers\.1\.self_attn and model\.layers\.2\.self_attn of .* both have layer_idx 1"),
        (windowed, "with a sliding window in 0 where its configuration has 4"),
        (without_attention, "called TALON's attention in 3 of 4 layers"),
    ],
)
def test_what_load_would_refuse_is_refused_where_it_comes_later(change: Callable[[Any], None], sentence: str) -> None:
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    decoder.generate(PROMPT, max_new_tokens=12)
    change(model)
    for _ in range(2):
        with pytest.raises(ValueError, match=sentence):
            decoder.generate(PROMPT, max_new_tokens=12)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM"):
        talon_core.load(model)


def test_another_window_is_one_for_passes_that_were_recorded() -> None:
    """It stands in a configuration, which no module tells of."""
    model = tiny_model("mistral-window")
    decoder = talon_core.load(model, **PARTS)
    before = decoder.generate(PROMPT, max_new_tokens=24).token_ids
    model.config.sliding_window = 3
    expected = answer(model, 24)
    assert decoder.generate(PROMPT, max_new_tokens=24).token_ids == expected != before


def quantised(part: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still used
        return torch.ao.quantization.quantize_dynamic(part, {nn.Linear}, inplace=True)


def whole(model: Any) -> None:
    quantised(model)


def one_layer(model: Any) -> None:
    quantised(model.model.layers[2])


@pytest.mark.parametrize("change", [whole, one_layer])
def test_a_model_whose_layers_mix_tokens_is_refused_and_called_quantised(change: Callable[[Any], None]) -> None:
    model = tiny_model("llama")
    change(model)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM is quantised by torch\.ao \(.*cannot be verified"):
        talon_core.load(model)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM is quantised by torch\.ao"):
        talon_core.HFTarget(model, load_registry().get("attention backend", "sdpa").cls())


def test_drafters_say_their_rank_for_models_whose_weights_cannot_be_read() -> None:
    model = tiny_model("llama")
    quantised(model)
    registry = load_registry()
    for name in registry.names("drafter"):
        assert registry.get("drafter", name).cls.rank_for(model) in (None, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (tiny_model("llama").to("meta"), "has no weights: model.embed_tokens.weight is on the device 'meta'"),
        (nn.Linear(3, 3), "the model is a Linear; it must be a transformers causal LM"),
        (tiny_model("llama").model, "the model is a LlamaModel|LlamaModel has no output layer"),
    ],
    ids=["meta", "no language model", "no output layer"],
)
def test_what_cannot_be_decoded_is_refused_in_words(model: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        talon_core.load(model)


def test_accelerator_compile_refuses_what_is_compiled_already() -> None:
    model = tiny_model("llama")
    model.model.layers[0].mlp.compile(backend="eager")
    with pytest.raises(ValueError, match="LlamaForCausalLM has parts that are compiled already; accelerator 'compile'"):
        talon_core.load(model, accelerate="compile", **PARTS)


def module(model: Any) -> None:
    model.compile(backend="eager")


def wrapper(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def forward(model: Any) -> None:
    model.forward = torch.compile(model.forward, backend="eager")


def layer(model: Any) -> None:
    model.model.layers[1].compile(backend="eager")


def mlp(model: Any) -> None:
    model.model.layers[0].mlp = torch.compile(model.model.layers[0].mlp, backend="eager")


def linear(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.compile(backend="eager")


def of_class(model: Any) -> None:
    cls = type(model.model.layers[0].mlp)
    cls.forward = torch.compile(cls.forward, backend="eager")


def check_compiled(compiled: Callable[[Any], Any]) -> None:
    """A model that is compiled, before it is loaded or while it decodes, decodes as it does plain."""
    plain = talon_core.load(tiny_model("llama"), drafter="ngram").generate(PROMPT, max_new_tokens=12).token_ids
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tiny_model("llama")
        loaded_before = talon_core.load(model, drafter="draft-model:skip=1")
        stream = loaded_before.stream(PROMPT, max_new_tokens=12)
        next(stream)
        wrapped = compiled(model)
        model = model if wrapped is None else wrapped
        for _ in stream:
            pass
        assert stream.result().token_ids == plain
        for decoder in (talon_core.load(model, drafter="ngram"), loaded_before):
            assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == plain


@pytest.mark.parametrize("compiled", [module, layer, mlp, linear])
def test_a_compiled_model_is_decoded_as_it_is_plain(compiled: Callable[[Any], Any]) -> None:
    check_compiled(compiled)


def test_compiled_models_do_not_end_the_process(forked_python: str) -> None:
    """In a process of its own: a compiler that traces into native code may take it down, and a class stays changed."""
    code = f"""
        import runpy, sys
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        tests = runpy.run_path({__file__!r})
        for name in ("wrapper", "forward", "of_class"):
            tests["check_compiled"](tests[name])
            print(name)
    """
    done = subprocess.run(
        [forked_python, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["wrapper", "forward", "of_class"]


def scripted_activation(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.jit.script(nn.SiLU())


def other_scripted_activation(model: Any) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.jit.script(nn.GELU())


def traced_mlp(model: Any) -> None:
    model.model.layers[1].mlp = torch.jit.trace(model.model.layers[1].mlp, torch.randn(1, 3, 48))


def frozen_mlp(model: Any) -> None:
    model.model.layers[1].mlp = torch.jit.freeze(torch.jit.script(model.model.layers[1].mlp))


def scripted_head(model: Any) -> None:
    model.lm_head = torch.jit.script(model.lm_head)


@pytest.mark.parametrize(
    "change", [scripted_activation, other_scripted_activation, traced_mlp, frozen_mlp, scripted_head]
)
def test_parts_in_torchscript_are_called(change: Callable[[Any], None]) -> None:
    model = tiny_model("llama")
    loaded_before = talon_core.load(model, **PARTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still used
        change(model)
        expected = answer(model)
        for decoder in (talon_core.load(model, **PARTS), loaded_before):
            assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected


def resized(model: Any) -> None:
    model.resize_token_embeddings(model.config.vocab_size + 16, mean_resizing=False)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda model: model.double(), r"dtype was torch\.float32 and is torch\.float64"),
        (lambda model: model.to(torch.bfloat16), r"dtype was torch\.float32 and is torch\.bfloat16"),
        (resized, "vocabulary size was 97 and is 113"),
    ],
    ids=["double", "bfloat16", "resized"],
)
def test_what_changed_since_load_is_said_in_words(change: Callable[[Any], Any], what: str) -> None:
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    stream = decoder.stream(PROMPT, max_new_tokens=12)
    next(stream)
    change(model)
    sentence = f"^LlamaForCausalLM was changed after its decoder was made: its {what}; call talon_core.load again$"
    with pytest.raises(ValueError, match=sentence):
        decoder.generate(PROMPT)
    with pytest.raises(ValueError, match=sentence):
        next(stream)


def test_a_model_whose_weights_were_dropped_since_load_is_said_in_words() -> None:
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    stream = decoder.stream(PROMPT, max_new_tokens=12)
    next(stream)
    model.to("meta")
    with pytest.raises(
        ValueError, match=r"^LlamaForCausalLM has no weights any more: it is on the device 'meta'; load"
    ):
        decoder.generate(PROMPT)
    with pytest.raises(ValueError, match="its device was cpu and is meta; call"):
        next(stream)


def test_as_generate_makes_another_decoder_for_a_model_that_has_changed() -> None:
    model = tiny_model("llama")
    ours = talon_core.as_generate(drafter="ngram")
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "custom_generate": ours}
    assert [int(token) for token in model.generate(PROMPT, **options)[0, 8:]] == answer(model)
    model.double()
    assert [int(token) for token in model.generate(PROMPT, **options)[0, 8:]] == answer(model)


def test_autocast_is_refused_in_words() -> None:
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    before = decoder.generate(PROMPT, max_new_tokens=12).token_ids
    stream = decoder.stream(PROMPT, max_new_tokens=12)
    next(stream)
    ours = talon_core.as_generate(decoder=decoder)
    sentence = r"^torch\.autocast is on for cpu, and would round .*; load and decode outside of it, with the model in"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for decode in (
            lambda: talon_core.load(model, **PARTS),
            lambda: decoder.generate(PROMPT, max_new_tokens=12),
            lambda: next(stream),
            lambda: model.generate(PROMPT, max_new_tokens=12, custom_generate=ours),
        ):
            with pytest.raises(ValueError, match=sentence):
                decode()
        with torch.autocast("cpu", enabled=False):
            assert talon_core.load(model, **PARTS).generate(PROMPT, max_new_tokens=12).token_ids == before
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == before


def test_a_class_that_is_patched_after_a_decoder_was_made_is_called_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    before = decoder.generate(PROMPT, max_new_tokens=12).token_ids
    own = type(model.model.layers[0].mlp).forward
    monkeypatch.setattr(type(model.model.layers[0].mlp), "forward", lambda self, x: own(self, x) * -2.0)
    after = decoder.generate(PROMPT, max_new_tokens=12).token_ids
    assert after == answer(model) != before


def narrow_model() -> Any:
    """A model in float32 whose numbers all are bfloat16 numbers: the C kernels read a copy of its weights."""
    config = LlamaConfig(
        vocab_size=5000,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).bfloat16().float().eval()


def test_a_row_of_the_head_that_is_zeroed_behind_the_back_is_not_chosen_any_more() -> None:
    model = narrow_model()
    decoder = talon_core.load(model, **PARTS)

    def streamed() -> list[int]:
        with decoder.stream(PROMPT, max_new_tokens=12) as stream:
            for _ in stream:
                pass
        return stream.result().token_ids

    def inside_generate() -> list[int]:
        ours = talon_core.as_generate(decoder=decoder)
        out = model.generate(PROMPT, max_new_tokens=12, do_sample=False, pad_token_id=0, custom_generate=ours)
        return [int(token) for token in out[0, 8:]]

    ways = (lambda: decoder.generate(PROMPT, max_new_tokens=12).token_ids, streamed, inside_generate)
    for decode in ways:
        expected = answer(model, 12)
        assert decode() == expected
        model.lm_head.weight.data[expected[3]] = 0
        assert decode() == answer(model, 12) != expected


def in_place(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5)


def behind_the_back(model: Any) -> None:
    for linear in some(model):
        linear.weight.data *= -1.5


def one_number_behind_the_back(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.weight.data[3, 5] += 40.0


def with_another_attribute(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.scale["default"] = -2.0


class Scaled(nn.Linear):
    """A layer that an attribute of its own changes, as those of adapters are."""

    scale: dict[str, float]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * self.scale["default"]


def test_a_number_that_is_written_behind_the_back_of_a_copy_lets_nothing_be_taken_over() -> None:
    model = narrow_model()
    decoder = talon_core.load(model, **PARTS)
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == answer(model, 12)
    model.model.layers[0].self_attn.v_proj.weight.data[3, 5] += 8.0
    expected = answer(model, 12)
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected


@pytest.mark.parametrize("drafter", ["ngram", "draft-model:skip=1"])
@pytest.mark.parametrize(
    "change", [*CHANGES, in_place, behind_the_back, one_number_behind_the_back, with_another_attribute]
)
def test_nothing_is_taken_over_from_a_text_of_a_model_that_has_changed_since(
    change: Callable[[Any], None], drafter: str
) -> None:
    model = tiny_model("llama")
    scaled = model.model.layers[0].mlp.down_proj
    scaled.__class__, scaled.scale = Scaled, {"default": 1.0}
    decoder = talon_core.load(model, policy="talon:budget=6,top_k=2", drafter=drafter)
    read: list[int] = []
    before = decoder.target.read
    decoder.target.read = lambda parts: (read.extend(map(len, parts.values())), before(parts))[1]  # type: ignore[method-assign]
    expected = answer(model)
    for _ in range(2):
        assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == expected
    with decoder.stream(PROMPT, max_new_tokens=12) as left:
        next(left)
        change(model)
        next(left)
    assert decoder.generate(PROMPT, max_new_tokens=12).token_ids == answer(model)
    assert read == [7, 7]  # of the prompt without its last token; between them it was known


def test_a_drafters_own_weights_are_compared_before_every_generation(tmp_path: Path) -> None:
    tokens = torch.arange(20, 80)
    torch.manual_seed(0)
    recipe = MedusaTraining(MedusaRecipe(draft_vocab=60))
    recipe.export(recipe.make(tiny_model("llama"), tokens), tokens, {}, tmp_path)
    decoder = talon_core.load(tiny_model("llama"), policy=PARTS["policy"], drafter=f"medusa:path={tmp_path}")
    compared: list[int] = []
    session: Any = decoder.drafter.session()._inside  # type: ignore[union-attr]
    for narrow in session._narrow.values():
        narrow.refresh = lambda: bool(compared.append(1))  # type: ignore[func-returns-value]
    for _ in range(2):
        compared.clear()
        for _piece in decoder.stream(PROMPT, max_new_tokens=12):
            pass
        assert len(compared) == len(session._narrow) > 0


def test_hooks_on_every_module_are_called_though_they_came_after_the_decoder() -> None:
    model = tiny_model("llama")
    decoder = talon_core.load(model, **PARTS)
    before = decoder.generate(PROMPT, max_new_tokens=12).token_ids

    def hook(module: nn.Module, _args: Any, out: Any) -> Any:
        return out * -1.5 if type(module) is nn.Linear else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        after = decoder.generate(PROMPT, max_new_tokens=12).token_ids
        assert after == answer(model) != before
    finally:
        handle.remove()
