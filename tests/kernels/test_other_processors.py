"""Kernels that were compiled for other processors: what the tests of all kernels need of them."""

import pytest
import torch

from talon_kernels.gated_unit import gated_unit
from talon_kernels.native import load
from talon_tests.emulated import Memory

LANES = {"haswell": 8, "x86-64": 4, "aarch64": 4}


@pytest.mark.parametrize("library", LANES, indirect=True)
def test_they_answer_where_kernels_are_asked_for(library, request):
    assert load() is library
    assert library.lanes == LANES[request.node.callspec.params["library"]]


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
