"""What can be imported from the kit by name, and what its import loads."""

import subprocess
import sys
from importlib import import_module

import pytest

import talon_core.runtime


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_kit_loads_neither_torch_nor_transformers() -> None:
    assert loaded_by("import talon_core.runtime") & {"torch", "numpy", "transformers", "talon_drafters"} == set()


def test_all_names_of_the_kit_load_no_transformers() -> None:
    loaded = loaded_by("from talon_core.runtime import *")
    assert "torch" in loaded
    assert loaded & {"transformers", "talon_drafters", "talon_strategies", "talon_kernels", "triton"} == set()


@pytest.mark.parametrize("name", talon_core.runtime.__all__)
def test_a_name_of_the_kit_is_that_of_its_module(name: str) -> None:
    found = getattr(talon_core.runtime, name)
    assert getattr(import_module(found.__module__), name) is found
    assert found.__module__.startswith("talon_core.runtime.")
