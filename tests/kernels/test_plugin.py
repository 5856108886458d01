"""The kernels are found as anybody's are, and naming them costs nothing."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import talon_kernels
from talon_core.attention import TreeLayout
from talon_core.plugins.registry import load_registry
from talon_kernels.native import switch_off


def test_backends_are_found_by_name():
    registry = load_registry()
    assert {"native", "sdpa", "reference"} <= set(registry.names("attention backend"))
    assert "native" in registry.names("accelerator")


def test_importing_the_plugin_loads_no_torch():
    code = "import sys, talon_kernels; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_an_operation_loads_no_triton():
    code = "import sys, talon_kernels.{}; assert 'triton' not in sys.modules"
    code = "\n".join(map(code.format, ("greedy_walk", "commit_path", "tree_attention")))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_all_backends_agree(library, softcap):
    layout = TreeLayout(np.array([7]), (np.array([-1, 0, 0]),), np.array([0]))
    query, key, value = torch.randn(4, 3, 8), torch.randn(1, 2, 10, 8), torch.randn(1, 2, 10, 8)
    outs = [
        cls().attend(query, key, value, layout, scale=0.3, softcap=softcap) for cls in talon_kernels.talon_attention()
    ]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])


def test_native_says_where_it_cannot_run(library):
    cpu = torch.device("cpu")
    for cls in (talon_kernels.NativeAttention, talon_kernels.NativeAccelerator):
        assert cls().unavailable(cpu, torch.float32) is None
        assert "float32" in cls().unavailable(cpu, torch.bfloat16)
        assert "CPU" in cls().unavailable(torch.device("cuda"), torch.float32)
        with switch_off("no compiler today"):
            assert cls().unavailable(cpu, torch.float32) == "no compiler today"
    assert talon_kernels.SdpaAttention().unavailable(cpu, torch.bfloat16) is None
    assert talon_kernels.ReferenceAttention().unavailable(cpu, torch.bfloat16) is None


def test_the_accelerator_prepares_a_context(library):
    layer = torch.nn.Linear(3, 3)
    with talon_kernels.NativeAccelerator().prepare(layer):
        assert "forward" in layer.__dict__
    assert "forward" not in layer.__dict__
