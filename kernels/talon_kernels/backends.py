"""The kernels as the core asks for them: attention backends and an accelerator, found by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from talon_core.attention import Accelerator, AttentionBackend, DeviceBackend, PackedLayout, TreeLayout

if TYPE_CHECKING:
    from torch import Tensor, device, dtype, nn

    from talon_core.runtime.recording import PassRecorder
    from talon_kernels.acceleration import Acceleration

# Everything is imported where it is used: naming the backends must not load torch.

_log = logging.getLogger("talon_core.kernels")

FASTEST = 30
"""The priority of compiled kernels for a device; PyTorch's own have 20, and what is written for reading 10."""


class _Attention(AttentionBackend):
    name: ClassVar[str]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layout: TreeLayout,
        *,
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        from talon_kernels.tree_attention import tree_attention

        backend = self.name
        if backend == "sdpa" and (softcap is not None or sinks is not None):
            backend = "reference"
        return tree_attention(
            query, key, value, layout, scale=scale, softcap=softcap, window=window, sinks=sinks, backend=backend
        )


class NativeAttention(_Attention):
    """Compiled C, for float32 on a CPU; a node's output has the bits of plain decoding."""

    name = "native"
    reads_prompts = True

    @classmethod
    def priority(cls, device: device) -> int:
        return FASTEST

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        from talon_kernels.tree_attention import native_cannot

        return native_cannot(device, dtype)

    def recorder(self) -> PassRecorder | None:
        from talon_kernels.native import load
        from talon_kernels.recorded.recorder import NativeRecorder

        library = load()
        return NativeRecorder(library) if library is not None else None


class SdpaAttention(_Attention):
    """PyTorch's `scaled_dot_product_attention` with a mask; layers with a softcap or sinks go to the reference."""

    name = "sdpa"

    @classmethod
    def priority(cls, device: device) -> int:
        return 20

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        return None


class ReferenceAttention(_Attention):
    """Plain PyTorch, as the definition reads; slow."""

    name = "reference"

    @classmethod
    def priority(cls, device: device) -> int:
        return 10

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        return None


class TritonAttention(DeviceBackend):
    """Triton, for GPUs: reads the layout on the device, so that CUDA graphs can hold a whole round of verification."""

    name = "triton"

    @classmethod
    def priority(cls, device: device) -> int:
        return FASTEST if device.type == "cuda" else 0  # elsewhere it is interpreted

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        from talon_kernels.tree_attention import triton_cannot

        return triton_cannot(device, dtype)

    def attend_packed(self, query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, **options: Any) -> Tensor:
        from talon_kernels.tree_attention.triton import tree_attention_triton

        return tree_attention_triton(query, key, value, layout, **options)

    def greedy_walk(
        self, best: Tensor, tokens: Tensor, parents: Tensor, sequences: Tensor, ends: Tensor, longest: int
    ) -> Tensor:
        from talon_kernels.greedy_walk import greedy_walk

        return greedy_walk(best, tokens, parents, sequences, ends, longest, backend="triton")

    def mover(self, buffers: Sequence[Tensor]) -> Callable[[Tensor, Tensor, Tensor], None]:
        from talon_kernels.commit_path import BufferTable, commit_path

        known = BufferTable(buffers)
        return lambda sequences, walks, table: commit_path(known, sequences, walks, table, backend="triton")


class NativeAccelerator(Accelerator):
    """Compiled C in the place of linear layers, RMS norms and gated MLPs, for float32 on a CPU."""

    name = "native"

    @classmethod
    def priority(cls, device: device) -> int:
        return FASTEST

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        from talon_kernels.tree_attention import native_cannot

        return native_cannot(device, dtype)

    def measured(self) -> Mapping[str, str]:
        from talon_kernels.native import load
        from talon_kernels.native.tuning import told_speeds

        library = load()
        return told_speeds(library) if library is not None else {}

    def prepare(self, model: nn.Module) -> Acceleration:
        from talon_kernels.acceleration import accelerate

        return _told(self.name, model, accelerate(model))


class TritonAccelerator(Accelerator):
    """Triton's norms, sums, gates and rotary embedding in the place of a model's own; taken where asked for by name."""

    name = "triton"
    automatic = False  # no GPU has measured it yet

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        from talon_kernels.triton_runtime import triton_cannot

        return triton_cannot(device, dtype)

    def prepare(self, model: nn.Module) -> Acceleration:
        from talon_kernels.fused import fuse

        return _told(self.name, model, fuse(model))


class CompileAccelerator(Accelerator):
    """`torch.compile` for norms and MLPs, which fuses their small kernels; compiling takes its time at first use."""

    name = "compile"
    automatic = False

    def unavailable(self, device: device, dtype: dtype) -> str | None:
        return None

    def prepare(self, model: nn.Module) -> Acceleration:
        from talon_kernels.compiled import compile_layers

        return _told(self.name, model, compile_layers(model))


def _told(name: str, model: nn.Module, made: Acceleration) -> Acceleration:
    """Tell how much of a model an accelerator has replacements for, and hand them on."""
    found = ", ".join(f"{count} {kind}" for kind, count in made.summary().items())
    _log.info("accelerator '%s' replaces in %s: %s", name, type(model).__name__, found or made.reason or "nothing")
    return made
