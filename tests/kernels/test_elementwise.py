"""RMSNorm, the gate of an MLP, and the whole gated MLP."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_kernels.gated_mlp import gated_mlp
from talon_kernels.gated_unit import gated_unit
from talon_kernels.gated_unit.reference import gated_unit_reference
from talon_kernels.native import switch_off
from talon_kernels.rms_norm import rms_norm
from talon_kernels.rms_norm.reference import rms_norm_reference
from talon_kernels.skinny_linear import skinny_linear

EPS = torch.finfo(torch.float32).eps


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("hidden", [1, 7, 63, 64, 100, 576])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_norm_has_the_error_of_float32(library, check_error, hidden, offset, scale):
    x, weight = numbers(63, hidden) * scale, numbers(hidden, seed=1)
    got = rms_norm(x, weight, 1e-6, offset, backend="native")
    low = rms_norm_reference(x, weight, 1e-6, offset)
    check_error(got, low, rms_norm_reference(x.double(), weight.double(), 1e-6, offset))


@settings(deadline=None)
@given(rows=st.integers(1, 100), hidden=st.integers(1, 700))
def test_a_normed_row_has_the_same_bits_in_any_company(library, rows, hidden):
    x, weight = numbers(rows, hidden), numbers(hidden, seed=1)
    alone = torch.cat([rms_norm(row[None], weight, 1e-6, backend="native") for row in x])
    assert torch.equal(rms_norm(x, weight, 1e-6, backend="native"), alone)


def test_norm_takes_any_shape_and_strides(library):
    x = numbers(2, 63, 3, 7).transpose(1, 2)
    got = rms_norm(x, numbers(7, seed=1), 1e-6, backend="native")
    assert torch.equal(got, rms_norm(x.contiguous(), numbers(7, seed=1), 1e-6, backend="native"))
    assert rms_norm(torch.zeros(0, 7), torch.ones(7), 1e-6, backend="native").shape == (0, 7)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gate_is_right_to_the_last_bits_everywhere(library, kind):
    small = torch.logspace(-40, 2, 20_001)
    gate = torch.cat([torch.linspace(-110, 110, 100_003), small, -small])
    up = torch.ones_like(gate)
    # 0.5 * (1 + tanh(a)) = sigmoid(2 a); the left side cancels in the tail, even in float64.
    wide = gate.double()
    inner = wide if kind == "silu" else 2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    truth = wide * torch.sigmoid(inner)
    low, got = gated_unit_reference(gate, up, kind), gated_unit(gate, up, kind, backend="native")
    # Near zero and in the tail the results themselves are tiny: compare relative to them, in stretches of one size.
    for begin, end in ((-200.0, -20.0), (-20.0, -5.0), (-5.0, -1.0), (-1.0, 1.0), (1.0, 200.0)):
        part = (gate >= begin) & (gate <= end)
        size = truth[part].abs().clamp_min(torch.finfo(torch.float32).tiny)
        reference = ((low[part].double() - truth[part]).abs() / size).max()
        assert ((got[part].double() - truth[part]).abs() / size).max() <= 2 * reference + EPS


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gate_of_special_numbers(library, kind):
    inf, nan = float("inf"), float("nan")
    got = gated_unit(torch.tensor([inf, nan, 0.0, 3e38]), torch.tensor([1.0, 1.0, 5.0, 0.5]), kind, backend="native")
    assert got[0] == inf
    assert got[1].isnan()
    assert got[2] == 0
    assert got[3] == torch.tensor(1.5e38)


@settings(deadline=None)
@given(n=st.integers(0, 20000), at=st.integers(0, 40), kind=st.sampled_from(["silu", "gelu_tanh"]))
def test_a_gate_has_the_same_bits_in_any_place(library, n, at, kind):
    gate, up = numbers(n), numbers(n, seed=1)
    whole = gated_unit(gate, up, kind, backend="native")
    assert torch.equal(whole[at:], gated_unit(gate[at:].clone(), up[at:].clone(), kind, backend="native"))


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [0, 1, 7, 63])
def test_gated_mlp_is_its_parts_bit_for_bit(library, kind, rows):
    x, gate, up, down = numbers(rows, 63), numbers(100, 63, seed=1), numbers(100, 63, seed=2), numbers(77, 100, seed=3)
    hidden = gated_unit(
        skinny_linear(x, gate, backend="native"), skinny_linear(x, up, backend="native"), kind, backend="native"
    )
    assert torch.equal(
        gated_mlp(x, gate, up, down, kind, backend="native"), skinny_linear(hidden, down, backend="native")
    )


def test_without_a_compiler_plain_pytorch_answers():
    x, weight = numbers(7, 63), numbers(63, seed=1)
    w = numbers(63, 63, seed=2)
    with switch_off("no compiler today"):
        assert torch.equal(rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6, 0.0))
        assert torch.equal(gated_unit(x, x, "silu"), gated_unit_reference(x, x, "silu"))
        assert torch.equal(gated_mlp(x, w, w, w, "silu"), gated_mlp(x, w, w, w, "silu", backend="reference"))
        for call in (
            lambda: rms_norm(x, weight, 1e-6, backend="native"),
            lambda: gated_unit(x, x, "silu", backend="native"),
            lambda: gated_mlp(x, w, w, w, "silu", backend="native"),
        ):
            with pytest.raises(ValueError, match="no compiler today"):
                call()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: rms_norm(torch.zeros(2, 3), torch.zeros(4), 1e-6), "hidden"),
        (lambda: rms_norm(torch.zeros(2, 3).half(), torch.zeros(3), 1e-6), "float16"),
        (lambda: rms_norm(torch.zeros(2, 3), torch.zeros(3), 1e-6, backend="magic"), "there are"),
        (lambda: gated_unit(torch.zeros(2), torch.zeros(3), "silu"), "one shape"),
        (lambda: gated_unit(torch.zeros(2), torch.zeros(2), "relu"), "there are: silu, gelu_tanh"),
        (lambda: gated_unit(torch.zeros(2).half(), torch.zeros(2), "silu"), "float16"),
        (lambda: gated_unit(torch.zeros(2), torch.zeros(2), "silu", backend="magic"), "there are"),
        (lambda: gated_mlp(*[torch.zeros(2, 3)] * 4, "silu"), "rows, in"),
        (lambda: gated_mlp(*[torch.zeros(2, 2)] * 4, "relu"), "there are"),
        (lambda: gated_mlp(*[torch.zeros(2, 2).half()] * 4, "silu"), "float16"),
        (lambda: gated_mlp(*[torch.zeros(2, 2)] * 4, "silu", backend="magic"), "there are"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
