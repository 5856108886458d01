"""Whether the pinned packages can be installed beside torch's build for CUDA too; tests run beside the one for CPUs."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def lines(name: str) -> list[str]:
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


PINS = {canonicalize_name(name): pinned for name, pinned in (line.split("==") for line in lines("constraints.txt"))}
CUDA = [Requirement(line) for line in lines("tools/cuda_requirements.txt")]


def conflicts(pins: dict[str, str]) -> Iterator[str]:
    """The pins that a machine with the build for CUDA could not have."""
    for needed in CUDA:
        pinned = pins.get(canonicalize_name(needed.name))
        asked = [
            needed.marker is None or needed.marker.evaluate({"platform_system": "Linux", "python_version": python})
            for python in PYTHONS
        ]
        if pinned is not None and any(asked) and not needed.specifier.contains(pinned):
            yield f"{needed.name} is pinned to {pinned}, and torch asks for {needed.specifier}"


def test_the_pins_hold_for_the_build_of_torch_for_cuda() -> None:
    assert [*conflicts(PINS)] == []


@pytest.mark.parametrize(("name", "pinned"), [("triton", "3.9.0"), ("sympy", "1.12")])
def test_a_pin_that_it_could_not_have_is_found(name: str, pinned: str) -> None:
    (conflict,) = conflicts(PINS | {name: pinned})
    assert conflict.startswith(f"{name} is pinned to {pinned}, and torch asks for ")


def test_what_it_asks_for_is_written_down_for_the_torch_that_is_set_up() -> None:
    head = (ROOT / "tools/cuda_requirements.txt").read_text().splitlines()[0]
    said = re.search(r"torch ([0-9.]+) for CUDA", head)
    assert said is not None
    assert said[1] == PINS["torch"]
    assert f"torch=={said[1]}" in (ROOT / "Makefile").read_text()
    assert {"triton", "cuda-bindings"} <= {needed.name for needed in CUDA}


@pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux")
def test_tests_run_with_the_triton_that_the_build_for_cuda_brings() -> None:
    (asked,) = (needed for needed in CUDA if needed.name == "triton")
    assert asked.specifier.contains(version("triton"))
