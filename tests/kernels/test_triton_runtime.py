"""What keeps Triton's kernels from running is said before they are tried."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from talon_kernels import triton_runtime
from talon_kernels.triton_runtime import missing_for_launches, triton_cannot

triton = pytest.importorskip("triton")
GPU = torch.device("cuda:0")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kernels are compiled and not interpreted, and there is a compiler; the names that were looked for."""
    looked: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(triton_runtime, "which", lambda name: (looked.append(name), f"/usr/bin/{name}")[1])
    missing_for_launches.cache_clear()
    yield looked
    missing_for_launches.cache_clear()


@pytest.mark.usefixtures("compiled")
def test_without_the_headers_of_python_there_are_no_launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(triton_runtime, "_python_headers", lambda: tmp_path)
    why = triton_cannot(GPU, torch.bfloat16)
    assert why == (
        f"triton needs Python.h for its launches, and {tmp_path} has none; install python3-dev, or python3-devel"
    )
    (tmp_path / "Python.h").touch()
    missing_for_launches.cache_clear()
    assert triton_cannot(GPU, torch.bfloat16) is None


def test_a_compiler_is_looked_for_once(compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(triton_runtime, "_python_headers", lambda: tmp_path)
    monkeypatch.setenv("CC", "my-compiler")
    for _ in range(3):
        assert triton_cannot(GPU, torch.bfloat16) is None
    assert compiled == ["my-compiler"]


@pytest.mark.usefixtures("compiled")
def test_without_a_compiler_there_are_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_runtime, "which", lambda name: None)
    assert triton_cannot(GPU) == "triton needs a C compiler for its launches, and there is none"


def test_headers_are_looked_for_where_triton_does() -> None:
    assert triton_runtime._python_headers().name.startswith("python3")
