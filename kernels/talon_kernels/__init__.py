"""TALON's kernels, a plugin like anybody's: each operation beside its plain PyTorch reference.

An operation is a folder: `talon_kernels.skinny_linear`, `rms_norm`, `gated_unit`, `gated_mlp`, `same_numbers`,
`tree_attention`, `rotary_write`, `greedy_walk` and `commit_path`.
Importing this module loads no torch.
"""

from talon_core.attention import Accelerator, AttentionBackend
from talon_core.hookspecs import hookimpl
from talon_kernels.backends import (
    CompileAccelerator,
    NativeAccelerator,
    NativeAttention,
    ReferenceAttention,
    SdpaAttention,
    TritonAccelerator,
    TritonAttention,
)

__all__ = [
    "CompileAccelerator",
    "NativeAccelerator",
    "NativeAttention",
    "ReferenceAttention",
    "SdpaAttention",
    "TritonAccelerator",
    "TritonAttention",
]


@hookimpl
def talon_attention() -> list[type[AttentionBackend]]:
    return [NativeAttention, TritonAttention, SdpaAttention, ReferenceAttention]


@hookimpl
def talon_accelerators() -> list[type[Accelerator]]:
    return [NativeAccelerator, TritonAccelerator, CompileAccelerator]
