"""Accelerated models compute what they computed before, and are as they were afterwards."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

from talon_kernels import narrow as narrow_copies
from talon_kernels.acceleration import PROBE_ERROR, accelerate, replaced
from talon_kernels.native import switch_off

SMALL = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "attn_implementation": "eager",
}

MODELS = {
    "llama": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "gemma2": Gemma2Config(**SMALL, sliding_window=5),
    "gemma3": Gemma3TextConfig(**SMALL, sliding_window=5),
    "qwen3": Qwen3Config(**SMALL),
    "gpt2": GPT2Config(vocab_size=99, n_embd=48, n_layer=2, n_head=4, attn_implementation="eager"),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=3, experts_implementation="eager"),
}

REPLACED = {
    "llama": {"gated mlp": 2, "linear": 15, "rms norm": 5},
    "gemma2": {"gated mlp": 2, "linear": 15, "rms norm": 9},
    "gemma3": {"gated mlp": 2, "linear": 15, "rms norm": 13},
    "qwen3": {"gated mlp": 2, "linear": 15, "rms norm": 9},
    "gpt2": {"linear": 1},
    "mixtral": {"linear": 9, "rms norm": 5},
}


def model_of(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[name], dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # norms start as all ones or all zeros
    return model


@pytest.fixture
def llama():
    return model_of("llama")


def patched(model):
    return [name for name, module in model.named_modules() if "forward" in module.__dict__]


@pytest.mark.parametrize("name", list(MODELS))
@torch.no_grad()
def test_logits_have_the_error_of_float32(library, check_error, name):
    torch.use_deterministic_algorithms(False)  # transformers asks for empty memory and fills it in its own ways
    model = model_of(name)
    acceleration = accelerate(model)
    assert acceleration.summary() == REPLACED[name]
    assert acceleration.reason is None
    wide = copy.deepcopy(model).double()
    for length in (1, 7, 33):
        ids = torch.randint(0, 99, (2, length), generator=torch.Generator().manual_seed(length))
        low, truth = model(ids, use_cache=False).logits, wide(ids, use_cache=False).logits
        with acceleration:
            got = model(ids, use_cache=False).logits
        check_error(got, low, truth)
    assert patched(model) == []


@torch.no_grad()
def test_a_row_has_the_same_bits_in_any_company(library, llama):
    x = torch.randn(1, 33, 48, generator=torch.Generator().manual_seed(1))
    layer = llama.model.layers[0]
    with accelerate(llama):
        for module in (layer.mlp, layer.input_layernorm, layer.self_attn.q_proj):
            together = module(x)
            alone = torch.cat([module(x[:, row : row + 1]) for row in range(33)], dim=1)
            assert torch.equal(together, alone)


def test_nothing_of_the_model_is_changed(library, llama):
    before = {name: value.clone() for name, value in llama.state_dict().items()}
    addresses = [parameter.data_ptr() for parameter in llama.parameters()]
    types = [type(module) for module in llama.modules()]
    drawn = torch.random.get_rng_state()
    with accelerate(llama):
        after = llama.state_dict()
        assert patched(llama)
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [parameter.data_ptr() for parameter in llama.parameters()] == addresses
    assert [type(module) for module in llama.modules()] == types
    assert patched(llama) == []


def test_it_can_be_entered_again_and_left_by_an_exception(library, llama):
    acceleration = accelerate(llama)
    with acceleration:
        with pytest.raises(KeyError), acceleration:
            raise KeyError
        assert patched(llama)
    assert patched(llama) == []
    with acceleration:
        assert patched(llama)
    assert patched(llama) == []


@torch.no_grad()
def test_weights_assigned_anew_are_used(library, llama):
    linear, norm, mlp = llama.lm_head, llama.model.norm, llama.model.layers[0].mlp
    x = torch.randn(1, 3, 48)
    with accelerate(llama):
        linear.weight = nn.Parameter(torch.zeros(99, 48))
        assert (linear(x) == 0).all()
        norm.weight.data = torch.zeros(48)
        assert (norm(x) == 0).all()
        mlp.down_proj = nn.Identity()
        assert mlp(x).shape == (1, 3, 100)


@torch.no_grad()
def test_hooks_on_the_parts_of_an_mlp_are_called(library, llama):
    mlp = llama.model.layers[0].mlp
    seen = []
    with accelerate(llama):
        handle = mlp.down_proj.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
        mlp(torch.randn(1, 3, 48))
        handle.remove()
        mlp(torch.randn(1, 3, 48))
    assert seen == [(1, 3, 100)]


@torch.no_grad()
def test_hooks_on_the_activation_of_an_mlp_are_called(library, llama):
    mlp = llama.model.layers[0].mlp
    x = torch.randn(1, 3, 48)
    plain = mlp(x)
    acceleration = accelerate(llama)
    handle = mlp.act_fn.register_forward_hook(lambda module, inputs, out: out * 0)
    without_activation = mlp(x)
    with acceleration:
        torch.testing.assert_close(mlp(x), without_activation)
        handle.remove()
        torch.testing.assert_close(mlp(x), plain)
    assert not torch.allclose(plain, without_activation)


def test_gradients_flow_as_before(library, llama):
    layer = llama.model.layers[0]
    x = torch.randn(1, 3, 48)
    for module in (layer.mlp, layer.input_layernorm, layer.self_attn.q_proj):
        expected = module(x)
        with accelerate(llama):
            got = module(x)
        assert got.requires_grad
        assert torch.equal(got, expected)


@torch.no_grad()
def test_other_types_go_to_the_module_itself(library, llama):
    acceleration = accelerate(llama)
    x = torch.randn(1, 3, 48)
    expected = copy.deepcopy(llama).double().model.layers[0].mlp(x.double())
    llama.double()
    with acceleration:
        assert torch.equal(llama.model.layers[0].mlp(x.double()), expected)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            llama.lm_head(torch.zeros(1, 3, 47).double())
    llama.float()
    with acceleration, pytest.raises(RuntimeError, match="mat1 and mat2"):
        llama.lm_head(torch.zeros(1, 3, 47))


@torch.no_grad()
def test_a_strided_input_gives_the_same(library, llama):
    x = torch.randn(1, 48, 5).transpose(1, 2)
    with accelerate(llama):
        for module in (llama.model.layers[0].mlp, llama.model.norm, llama.lm_head):
            assert torch.equal(module(x), module(x.contiguous()))


class TripleRMSNorm(nn.Module):
    """By its name and its fields a norm like others, but not by what it computes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7))
        self.eps = 1e-6

    def forward(self, x):
        return 3 * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class GatedMLP(nn.Module):
    """A gated MLP with an activation of choice."""

    def __init__(self, act_fn):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(7, 9), nn.Linear(7, 9), nn.Linear(9, 7)
        self.act_fn = act_fn

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class MyLinear(nn.Linear):
    """May do anything."""


def test_only_what_reproduces_a_module_replaces_it(library):
    assert accelerate(TripleRMSNorm()).summary() == {"left rms norm": 1}
    assert accelerate(MyLinear(3, 3)).summary() == {}
    assert accelerate(nn.Linear(3, 3).double()).summary() == {}
    left = {"left gated mlp": 1, "linear": 3}
    assert accelerate(GatedMLP(nn.GELU())).summary() == left
    assert accelerate(GatedMLP(torch.relu)).summary() == left
    taken = {"gated mlp": 1, "linear": 3}
    assert accelerate(GatedMLP(nn.SiLU())).summary() == taken
    assert accelerate(GatedMLP(torch.nn.functional.silu)).summary() == taken
    assert accelerate(GatedMLP(nn.GELU(approximate="tanh"))).summary() == taken


def test_somebody_elses_patch_stays(library):
    layer = nn.Linear(3, 3)
    acceleration = accelerate(layer)
    layer.forward = lambda x: "mine"
    with acceleration:
        assert layer(torch.zeros(3)) == "mine"
    assert layer(torch.zeros(3)) == "mine"
    assert accelerate(layer).summary() == {}


def test_without_a_compiler_nothing_is_replaced(llama):
    with switch_off("no compiler today"):
        acceleration = accelerate(llama)
    assert acceleration.summary() == {}
    assert acceleration.reason == "no compiler today"
    with acceleration:
        assert patched(llama) == []


class ScaledMLP(GatedMLP):
    """Has a factor that is no parameter."""

    factor = 1.0

    def __init__(self):
        super().__init__(nn.GELU(approximate="tanh"))
        self.factor = 1.0

    def forward(self, x):
        return super().forward(x) * self.factor


class Other(ScaledMLP):
    def forward(self, x):
        return -super().forward(x)


class LearnedMLP(ScaledMLP):
    """Has a tensor that a replacement would not read."""

    def __init__(self, where):
        super().__init__()
        if where == "parameter":
            self.more = nn.Parameter(torch.ones(7))
        else:
            self.register_buffer("more", torch.ones(7))

    def forward(self, x):
        return super().forward(x) * self.more


class BufferedRMSNorm(nn.RMSNorm):
    def __init__(self):
        super().__init__(7, eps=1e-6)
        self.register_buffer("more", torch.ones(7))

    def forward(self, x):
        return super().forward(x) * self.more


def factor(mlp):
    mlp.factor = -2.0


def activation(mlp):
    mlp.act_fn.approximate = "none"


def of_another_class(mlp):
    mlp.__class__ = Other


@torch.no_grad()
@pytest.mark.parametrize("change", [factor, activation, of_another_class])
def test_a_setting_that_changes_is_heeded(library, change):
    mlp = ScaledMLP()
    acceleration = accelerate(mlp)
    assert acceleration.summary()["gated mlp"] == 1
    x = 8 * torch.randn(1, 3, 7)
    before = mlp(x)
    change(mlp)
    after = mlp(x)
    allowed = PROBE_ERROR / 10 * float(after.abs().max())  # far less than the changes make
    assert float((after - before).abs().max()) > 2 * allowed
    with acceleration:
        torch.testing.assert_close(mlp(x), after, rtol=0, atol=allowed)
    with acceleration.again():
        torch.testing.assert_close(mlp(x), after, rtol=0, atol=allowed)


def test_layers_with_further_tensors_are_left_alone(library):
    for where in ("parameter", "buffer"):
        assert accelerate(LearnedMLP(where)).summary() == {"linear": 3}
    assert accelerate(BufferedRMSNorm()).summary() == {}


# Narrow copies


def narrow_model(name="llama"):
    """A model in float32 whose numbers all are bfloat16 numbers, as most published ones are."""
    return model_of(name).to(torch.bfloat16).float()


def run(model, ids):
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("name", MODELS)
def test_narrow_weights_change_no_bit(library, name, monkeypatch):
    model, ids = narrow_model(name), torch.arange(9)[None]
    with accelerate(model) as narrow:
        got = run(model, ids)
    assert all(one.of(weight).dtype == torch.bfloat16 for weight, one in narrow._narrow.items())
    monkeypatch.setattr("talon_kernels.narrow.Narrow.of", lambda _, weight: weight)
    with accelerate(model):
        assert torch.equal(got, run(model, ids))


def test_weights_that_are_not_narrow_are_read_as_they_are(library):
    model = model_of("llama")
    acceleration = accelerate(model)
    assert all(one.of(weight) is weight for weight, one in acceleration._narrow.items())


def test_entering_compares_each_copy_once_and_entering_again_none(library, monkeypatch):
    acceleration = accelerate(narrow_model("llama"))
    compared = []
    monkeypatch.setattr(narrow_copies, "same_numbers_native", lambda _, *two: compared.append(two[0].numel()) or True)
    with acceleration, acceleration:
        pass
    assert sorted(compared) == sorted(one.of(weight).numel() for weight, one in acceleration._narrow.items())
    compared.clear()
    with acceleration.again():
        pass
    assert compared == []


@torch.inference_mode()
@pytest.mark.parametrize("at", [0, 1234, -1])
def test_one_number_that_changes_behind_the_back_is_seen(library, at):
    layer = nn.Linear(64, 48).to(torch.bfloat16).float()
    acceleration = accelerate(nn.Sequential(layer))
    layer.weight.data.view(-1)[at] = 1e4
    x = torch.randn(3, 64)
    with acceleration:
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["in place", "behind the back", "assigned", "while entered"])
def test_a_weight_that_changes_is_read_anew(library, how):
    layer = nn.Sequential(nn.Linear(64, 48)).to(torch.bfloat16).float()
    x = torch.randn(3, 64)
    acceleration = accelerate(layer)
    with torch.inference_mode(), acceleration:
        before = layer(x)
    other = torch.randn(48, 64)
    with torch.no_grad():
        if how == "in place":
            layer[0].weight.copy_(other)
        elif how == "behind the back":
            layer[0].weight.data.copy_(other)
        elif how == "assigned":
            layer[0].weight = nn.Parameter(other)
        with acceleration:
            if how == "while entered":
                layer[0].weight.copy_(other)
            after = layer(x)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, nn.functional.linear(x, layer[0].weight, layer[0].bias), rtol=1e-4, atol=1e-4)


def test_what_somebody_has_bound_to_a_module_is_there_again_after_a_trial():
    bound, plain = torch.nn.Identity(), torch.nn.Identity()
    own = bound.forward = lambda x: 2 * x
    with replaced({bound: torch.neg, plain: torch.neg}):
        assert (bound(torch.ones(1)), plain(torch.ones(1))) == (-1, -1)
    assert bound.__dict__["forward"] is own
    assert "forward" not in plain.__dict__


def test_a_norm_that_changes_behind_the_back_is_seen(library, llama):
    norm = llama.model.norm.weight
    acceleration = accelerate(llama)
    assert acceleration.watches(norm)
    with acceleration:
        assert acceleration.changes == 0
    norm.data.view(torch.int32)[3] ^= 1
    try:
        with acceleration:
            assert acceleration.changes == 1
    finally:
        norm.data.view(torch.int32)[3] ^= 1
