"""Kernels that were compiled for other processors: what the tests of all kernels need of them."""

import pytest
import torch

from talon_kernels.gated_unit import gated_unit
from talon_kernels.native import load
from talon_kernels.native.tuning import NARROW, SHORT_NARROW, SHORT_WIDE, WIDE
from talon_kernels.skinny_linear import skinny_linear
from talon_tests.emulated import Memory

LANES = {"haswell": 8, "x86-64": 4, "aarch64": 4}
COLUMNS = (1, 2, 3, 4, 6, 8)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("library", LANES, indirect=True)
def test_they_answer_where_kernels_are_asked_for(library, request):
    assert load() is library
    assert library.lanes == LANES[request.node.callspec.params["library"]]


@pytest.mark.parametrize("library", LANES, indirect=True)
@pytest.mark.parametrize(
    ("dtype", "inputs", "source"),
    [
        (torch.float32, 70, SHORT_WIDE),
        (torch.bfloat16, 70, SHORT_NARROW),
        (torch.float32, 1030, WIDE),
        (torch.bfloat16, 2060, NARROW),
    ],
)
def test_every_tile_gives_the_same_bits(library, dtype, inputs, source):
    """Also those that a plan may choose on another machine than this."""
    x, weight = numbers(8, inputs), numbers(26, inputs, seed=1).to(dtype)
    for rows in range(1, 9):
        followed, known = skinny_linear(x[:rows], weight, backend="native"), 0
        for columns in COLUMNS:
            known += library.plan(source, rows, columns, 1, 4096)
            assert torch.equal(skinny_linear(x[:rows], weight, backend="native"), followed)
        assert known or rows > 4  # processors with few registers take so many rows in two tiles


def test_reading_past_an_operand_is_seen_on_the_emulated_processor(emulated):
    gate, up, out = torch.ones(5), torch.ones(4), torch.empty(5)
    with pytest.raises(RuntimeError, match="ended with status"):
        emulated._call("gated_unit", *given(gate, up, out), 5, 0, 1)
    emulated.gated_unit(gate.data_ptr(), gate.data_ptr(), out.data_ptr(), 5, 0, 1)  # it is started again
    check = gated_unit(gate, gate, "silu", backend="reference")
    torch.testing.assert_close(out, check)


def given(*tensors):
    """Operands as the driver is told of them, the last one written to."""
    return [Memory(one.data_ptr(), one.nbytes, one is tensors[-1]) for one in tensors]
