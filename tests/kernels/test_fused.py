"""Fused layers in Triton, by its interpreter or on a GPU: the references' numbers, and models that stay as they are."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import talon_core.hf.attention  # noqa: F401  # by which transformers knows the attention that modules are tried with
from talon_core import load
from talon_core.plugins.backends import choose_accelerator
from talon_core.plugins.registry import load_registry
from talon_kernels import TritonAccelerator
from talon_kernels.fused import fuse
from talon_kernels.gated_unit import gated_unit
from talon_kernels.gated_unit.reference import gated_unit_reference
from talon_kernels.rms_norm import add_rms_norm, rms_norm
from talon_kernels.rms_norm.reference import add_rms_norm_reference, rms_norm_reference
from talon_tests.rounding import check_rounded
from talon_tests.tiny_models import tiny_model

TYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS, HIDDEN = st.sampled_from([0, 1, 7, 63]), st.sampled_from([1, 7, 63, 64, 100, 576])
REPLACED = {
    "llama": {"attention": 4, "decoder layer": 4, "gated mlp": 4, "rms norm": 9},
    "qwen3": {"attention": 4, "decoder layer": 4, "gated mlp": 4, "rms norm": 17},
    "gemma2": {"attention": 4, "gated mlp": 4, "rms norm": 17},
    "gpt2": {},
}


def rows(count, hidden, dtype, seed=0, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(count, hidden, generator=random)).to(dtype)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=ROWS,
    hidden=HIDDEN,
    dtype=st.sampled_from(TYPES),
    offset=st.sampled_from([0.0, 1.0]),
    scale=st.floats(0.01, 30),
)
def test_norms_and_sums_have_the_error_of_their_type(device, count, hidden, dtype, offset, scale):
    x, residual = rows(count, hidden, dtype, 0, scale), rows(count, hidden, dtype, 1, scale)
    weight = rows(1, hidden, dtype, 2)[0]
    wide = weight.double()
    there = [one.to(device) for one in (x, residual, weight)]
    got = rms_norm(there[0], there[2], 1e-5, offset, backend="triton")
    check_rounded(got, rms_norm_reference(x, weight, 1e-5, offset), rms_norm_reference(x.double(), wide, 1e-5, offset))
    total, got = add_rms_norm(*there, 1e-5, offset, backend="triton")
    total, (expected, _) = total.cpu(), add_rms_norm_reference(x, residual, weight, 1e-5, offset)
    # the interpreter cuts bfloat16 off where a GPU rounds
    assert ((total - expected).abs() <= torch.finfo(dtype).eps * expected.abs()).all()
    check_rounded(
        got, rms_norm_reference(total, weight, 1e-5, offset), rms_norm_reference(total.double(), wide, 1e-5, offset)
    )


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", TYPES)
def test_gates_have_the_error_of_their_type(device, dtype, kind):
    gate = torch.cat([torch.linspace(-30, 30, 1501), torch.tensor([0.0, 3e4, -3e4])]).to(dtype)
    up = rows(1, len(gate), dtype)[0]
    got = gated_unit(gate.to(device), up.to(device), kind, backend="triton")
    check_rounded(got, gated_unit_reference(gate, up, kind), gated_unit_reference(gate.double(), up.double(), kind))
    assert gated_unit(gate[:0].to(device), up[:0].to(device), kind, backend="triton").shape == (0,)


def on(device, architecture, dtype=torch.float32):
    return tiny_model(architecture).to(device, dtype)


def patched(model):
    return [module for module in model.modules() if "forward" in module.__dict__]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", REPLACED)
def test_inside_the_numbers_are_the_same_and_outside_nothing_is_left(device, architecture, dtype):
    model = on(device, architecture, dtype)
    fused = fuse(model)
    assert fused.summary() == REPLACED[architecture]
    ids = torch.arange(3, 12, device=device)[None]
    with torch.inference_mode():
        expected = model(input_ids=ids, use_cache=False).logits
        with fused:
            assert len(patched(model)) == sum(REPLACED[architecture].values())
            got = model(input_ids=ids, use_cache=False).logits
        assert patched(model) == []
        exact = on(device, architecture, dtype).double()(input_ids=ids, use_cache=False).logits
    assert (got - exact).norm() <= 1.5 * (expected - exact).norm()  # rounded in other places, and no worse


class Scaled(nn.Module):
    """A decoder layer that is not what its parts' names say: it adds half of what attention gives."""

    def __init__(self, layer):
        super().__init__()
        for name, child in layer.named_children():
            setattr(self, name, child)

    def forward(self, hidden_states, **kwargs):
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + 0.5 * attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def test_a_layer_that_does_something_else_is_left_alone(device):
    layer = on(device, "llama").model.layers[0]
    assert fuse(layer).summary()["decoder layer"] == 1
    assert fuse(Scaled(layer)).summary() == {"gated mlp": 1, "left decoder layer": 1, "rms norm": 2}
    layer.mlp.act_fn = nn.ReLU()
    assert "gated mlp" not in fuse(layer).summary()


def test_hooks_gradients_and_other_types_are_the_models_own_business(device):
    model = on(device, "llama")
    layer, norm = model.model.layers[0], model.model.norm
    heard = []
    layer.post_attention_layernorm.register_forward_hook(lambda *_: heard.append(1))
    x = torch.randn(1, 3, norm.weight.shape[0], device=device)
    with fuse(model):
        model(input_ids=torch.arange(3, device=device)[None], use_cache=False)
        assert heard
        assert norm(x).requires_grad
        with torch.no_grad():
            assert torch.equal(norm(x.double()), type(norm).forward(norm, x.double()))


@pytest.mark.parametrize("part", ["mlp.gate_proj", "mlp.up_proj", "self_attn.v_proj", "mlp.down_proj"])
def test_a_weight_that_is_to_learn_has_the_gradient_that_it_has_without(device, part):
    model = on(device, "llama").requires_grad_(False)
    weight = model.model.layers[1].get_submodule(part).weight.requires_grad_()
    ids = torch.arange(3, 8, device=device)[None]

    def gradient():
        weight.grad = None
        model(input_ids=ids, use_cache=False).logits.sum().backward()
        return weight.grad

    expected = gradient()
    with fuse(model):
        got = gradient()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_it_is_taken_by_name_only(device):
    registry = load_registry()
    assert isinstance(choose_accelerator(registry, "triton", device, torch.bfloat16), TritonAccelerator)
    assert not isinstance(choose_accelerator(registry, True, device, torch.bfloat16), TritonAccelerator)
    with pytest.raises(ValueError, match="accelerator 'triton' cannot be used here: it computes in float32"):
        choose_accelerator(registry, "triton", device, torch.float64)


@pytest.mark.slow
def test_a_generation_with_it_emits_the_same_tokens(device):
    model = on(device, "llama")
    options = {"drafter": "draft-model:skip=1", "policy": "talon:budget=4"}
    plain, fast = load(model, accelerate=False, **options), load(model, accelerate="triton", **options)
    prompt = [5, 6, 7, 5, 6]
    assert fast.generate(prompt, max_new_tokens=6).token_ids == plain.generate(prompt, max_new_tokens=6).token_ids
    assert patched(model) == []


def test_what_does_not_fit_is_refused_in_words():
    x, weight = torch.zeros(2, 3), torch.zeros(3)
    with pytest.raises(ValueError, match="must be alike"):
        add_rms_norm(x, torch.zeros(3, 3), weight, 1e-6)
    with pytest.raises(ValueError, match="no backend 'native' of add_rms_norm; there are: triton, reference"):
        add_rms_norm(x, x, weight, 1e-6, backend="native")
    assert torch.equal(add_rms_norm(x, x, weight, 1e-6)[0], x)
    for call in (
        lambda: rms_norm(torch.zeros(2, 20000), torch.zeros(20000), 1e-6, backend="triton"),
        lambda: rms_norm(x.double(), weight.double(), 1e-6),
        lambda: rms_norm(x.half(), weight.half(), 1e-6),
    ):
        with pytest.raises(ValueError, match=r"up to 16384|float32"):
            call()
