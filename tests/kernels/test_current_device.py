"""Triton launches on the current GPU, whatever the tensors are on: every kernel is launched while theirs is current."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import talon_kernels
from talon_core.attention import PackedLayout

pytest.importorskip("triton")
NUMBERS = torch.zeros(8, dtype=torch.int32)
ROWS = torch.ones(3, 16)
TREES = NUMBERS.view(2, 4)
"""The sequences of two trees, or their walks, in which nothing is done."""


def attention(module: Any) -> Tensor:
    query, keys = torch.zeros(2, 3, 16), torch.zeros(2, 2, 64, 16)
    layout = PackedLayout(TREES, torch.zeros((2, 4), dtype=torch.int32), torch.zeros((3, 1), dtype=torch.int32), 2)
    module.tree_attention_triton(query, keys, keys, layout, scale=1.0, programs=2)
    return query


def commit(module: Any) -> Tensor:
    slabs = torch.zeros((1, 4), dtype=torch.int64)
    module.commit_path_triton(slabs, 8, TREES, TREES, TREES, 6)
    return slabs


def walk(module: Any) -> Tensor:
    module.greedy_walk_triton(NUMBERS, NUMBERS, NUMBERS, TREES, NUMBERS, 3)
    return NUMBERS


def norm(module: Any) -> Tensor:
    module.rms_norm_triton(ROWS, ROWS[0], 1e-5, 0.0)
    return ROWS


def gate(module: Any) -> Tensor:
    module.gated_unit_triton(ROWS, ROWS, "silu")
    return ROWS


KERNELS: dict[str, tuple[Callable[[Any], Tensor], list[str]]] = {
    "tree_attention": (attention, ["attend", "merge"]),
    "commit_path": (commit, ["_move"]),
    "greedy_walk": (walk, ["_walk"]),
    "rms_norm": (norm, ["_normalise"]),
    "gated_unit": (gate, ["_gate"]),
}


class Current:
    """Stands for `torch.cuda.device_of`, and for kernels.

    Attributes:
        of: whose GPU is current.
        launches: of each kernel that was launched, its name and whose GPU was current.
    """

    def __init__(self) -> None:
        self.of: Tensor | None = None
        self.launches: list[tuple[str, Tensor | None]] = []

    def device_of(self, tensor: Tensor) -> "Current":
        self._next = tensor
        return self

    def __enter__(self) -> None:
        self.of = self._next

    def __exit__(self, *_: object) -> None:
        self.of = None

    def kernel(self, name: str) -> dict[Any, Any]:
        """What is launched as `kernel[grid](..)`."""

        class Launched(dict[Any, Any]):
            def __missing__(_, grid: Any) -> Callable[..., None]:
                return lambda *_, **__: self.launches.append((name, self.of))

        return Launched()


@pytest.mark.parametrize("operation", KERNELS)
def test_a_kernel_is_launched_on_the_gpu_of_its_tensors(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, names = KERNELS[operation]
    module, current = import_module(f"talon_kernels.{operation}.triton"), Current()
    monkeypatch.setattr(torch.cuda, "device_of", current.device_of)
    for name in names:
        monkeypatch.setattr(module, name, current.kernel(name))
    of = call(module)
    assert [name for name, _ in current.launches] == names
    assert all(one is not None and one.data_ptr() == of.data_ptr() for _, one in current.launches)


FILES = {file.parent.name: file for file in Path(talon_kernels.__path__[0]).glob("*/triton.py")}


def launches(tree: ast.AST) -> list[ast.Call]:
    """Calls as `kernel[grid](..)`."""
    return [one for one in ast.walk(tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Subscript)]


@pytest.mark.parametrize("operation", FILES)
def test_no_launch_is_written_where_the_gpu_is_not_made_current(operation: str) -> None:
    """Of kernels, too, that are not called above."""
    tree = ast.parse(FILES[operation].read_text(encoding="utf-8"))
    inside = [
        launch
        for one in ast.walk(tree)
        if isinstance(one, ast.With) and any("device_of" in ast.unparse(item) for item in one.items)
        for launch in launches(one)
    ]
    assert launches(tree)
    assert {*launches(tree)} == {*inside}
