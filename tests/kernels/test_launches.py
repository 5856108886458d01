"""What the host does when a Triton kernel is called: it asks the device nothing, and launches what was worked out."""

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from talon_core.attention import PackedShape
from talon_kernels.commit_path import BufferTable, commit_path
from talon_kernels.compiling import OPERATIONS
from talon_kernels.gated_unit import gated_unit
from talon_kernels.greedy_walk import greedy_walk
from talon_kernels.occupancy import nvidia
from talon_kernels.rms_norm import add_rms_norm, rms_norm
from talon_kernels.rotary_write import rotary_write
from talon_kernels.tree_attention import waves
from talon_kernels.tree_attention.cutting import merged_rows

triton = pytest.importorskip("triton")
attention = pytest.importorskip("talon_kernels.tree_attention.triton")

HERE = torch.device("meta")
"""Tensors there have no numbers, so that torch refuses all questions: `item`, `tolist`, `equal`, `nonzero`, copies."""

KERNELS = {
    "commit_path": ("_move",),
    "gated_unit": ("_gate",),
    "greedy_walk": ("_walk",),
    "rms_norm": ("_normalise",),
    "rotary_write": ("_rotate",),
    "tree_attention": ("attend", "merge"),
}


def integers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device=HERE)


def numbers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=HERE)


LAYOUT = PackedShape(3, 7, 16, 16)


def attend(**options: Any) -> None:
    query = numbers(4, 16, 64)
    layout = LAYOUT.views(integers(LAYOUT.size))
    attention.tree_attention_triton(query, numbers(9, 2, 64, 64), numbers(9, 2, 64, 64), layout, scale=0.1, **options)


CALLS: dict[str, tuple[str, Callable[[], Any]]] = {
    "attend": ("tree_attention", attend),
    "attend in pages": (
        "tree_attention",
        lambda: attend(table=integers(3, 5), window=9, softcap=5.0, sinks=numbers(4)),
    ),
    "walk": ("greedy_walk", lambda: greedy_walk(*[integers(16)] * 3, integers(3, 4), integers(2), 5)),
    "commit": ("commit_path", lambda: commit_path(table_of(3), integers(3, 4), integers(3, 7))),
    "commit in pages": (
        "commit_path",
        lambda: commit_path(table_of(9), integers(3, 4), integers(3, 7), integers(3, 5)),
    ),
    "norm": ("rms_norm", lambda: rms_norm(numbers(3, 64), numbers(64), 1e-6)),
    "sum and norm": ("rms_norm", lambda: add_rms_norm(numbers(3, 64), numbers(3, 64), numbers(64), 1e-6)),
    "gate": ("gated_unit", lambda: gated_unit(numbers(3, 64), numbers(3, 64), "silu")),
    "rotary": (
        "rotary_write",
        lambda: rotary_write(
            numbers(3, 4, 64),
            *[numbers(3, 2, 64)] * 2,
            *[numbers(3, 64)] * 2,
            *[numbers(9, 2, 64, 64)] * 2,
            *[torch.empty(3, dtype=torch.int64, device=HERE)] * 2,
        ),
    ),
}


def table_of(pages: int) -> BufferTable:
    """Made before a pass, when numbers are sent to the device."""
    with torch._C._DisableTorchDispatch():
        return BufferTable([numbers(pages, 2, 64, 64)])


class Launches:
    """In a kernel's place: what it would be launched with."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *_, **__: None


class NothingIsSent(TorchDispatchMode):
    """No tensor of the host takes part, or is copied to the device, but for what `torch.tensor` makes in silence."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [one for one in (*args, *(kwargs or {}).values()) if isinstance(one, torch.Tensor)]
        assert all(one.device == HERE for one in tensors), f"{func} takes a tensor of the host"
        assert func.name() not in ("aten::lift_fresh", "aten::_to_copy", "aten::copy_"), f"{func} copies"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, Launches]:
    """Of every kernel, by its name; the operations take tensors without numbers for those of a GPU."""
    found: dict[str, Launches] = {}
    for operation, kernels in KERNELS.items():
        module = import_module(f"talon_kernels.{operation}.triton")
        for kernel in kernels:
            found[kernel] = Launches()
            monkeypatch.setattr(module, kernel, found[kernel])
        if operation != "tree_attention":
            monkeypatch.setattr(import_module(f"talon_kernels.{operation}"), "takes_triton", lambda *_, **__: True)
    return found


@pytest.mark.parametrize("call", CALLS)
def test_a_call_asks_the_device_nothing_and_sends_it_nothing(launches, call):
    operation, run = CALLS[call]
    run()  # whatever is made once
    with NothingIsSent():
        run()
    assert all(len(launches[kernel].grids) == 2 for kernel in KERNELS[operation])


def test_every_operation_is_called():
    assert {operation for operation, _ in CALLS.values()} == set(KERNELS) == set(OPERATIONS)


@pytest.mark.parametrize(
    "question",
    [
        lambda one: int(one.sum()),
        lambda one: int(one[0, 1]),
        lambda one: one.tolist(),
        lambda one: one.cpu(),
        lambda one: one.numpy(),
        lambda one: one.nonzero(),
        lambda one: torch.equal(one, one),
        lambda one: one[one > 0],
        lambda one: bool((one > 0).any()),
        lambda one: one.copy_(torch.zeros(3, 4)),
        lambda one: one + torch.zeros(3, 4, dtype=torch.int32),
    ],
)
def test_questions_and_copies_are_noticed(question):
    with NothingIsSent(), pytest.raises((RuntimeError, NotImplementedError, TypeError, AssertionError)):
        question(integers(3, 4))


H100 = nvidia(2048, 228 * 1024)


class Compiled(Launches):
    """`attend`, of whose programs shared memory has room for so many at a time."""

    def __init__(self, held: int) -> None:
        super().__init__()
        self._held = held

    def warmup(self, *_: Any, grid: tuple[int, ...], num_warps: int, **__: Any) -> SimpleNamespace:
        shared = H100.shared // self._held - H100.kept
        assert H100.holds(32, shared, num_warps) == self._held
        return SimpleNamespace(run=None, n_regs=32, metadata=SimpleNamespace(shared=shared))


@pytest.mark.parametrize("held", [1, 3])
def test_as_many_programs_are_launched_as_the_gpu_holds_and_the_model_of_waves_says(launches, monkeypatch, held):
    cases: set[tuple[Any, ...]] = set()

    def noted(multiprocessors, programs, cut, sequences, kv_heads, group, dims):
        cases.add((programs, cut, len(sequences), sequences[0][1], kv_heads, group, dims))
        return waves.Waves(1, 1)

    monkeypatch.setattr(waves, "waves", noted)
    every = {f"attend bf16 {dim} rows={rows}": held for dim in (64, 128, 192, 256) for rows in (16, 32, 64, 128)}
    waves.least_even(132, "hopper", every)
    assert {case[-1] for case in cases} == set(waves.DIMS)
    monkeypatch.setattr(attention, "_gpu", lambda _: attention._Gpu("hopper", 132, H100))
    for programs, cut, batch, nodes, kv_heads, group, (dim, value_dim) in cases:
        attend, merge = Compiled(held), Launches()
        monkeypatch.setattr(attention, "attend", attend)
        monkeypatch.setattr(attention, "merge", merge)
        shape = PackedShape(batch, nodes, batch * nodes, nodes)
        query = numbers(kv_heads * group, batch * nodes, dim)
        key, value = numbers(batch, kv_heads, 64, dim), numbers(batch, kv_heads, 64, value_dim)
        attention.tree_attention_triton(query, key, value, shape.views(integers(shape.size)), scale=0.1)
        assert attend.grids == [(programs,)] == [(132 * held,)]
        tiles = kv_heads * (triton.cdiv(batch * nodes * group, cut.rows) + batch)
        assert merge.grids == [(min(tiles, programs) * cut.rows // merged_rows(cut.rows),)]
