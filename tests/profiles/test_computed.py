"""The profiles that come with TALON are what `tools/computed_profiles.py` works out, and marked as computed."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from talon_core.profiles.store import COMPUTED, find_profile

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("computed_profiles", ROOT / "tools" / "computed_profiles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_is_worked_out(tool: ModuleType) -> None:
    expected = tool.files()
    assert {*COMPUTED.glob("*.json")} == {*expected}
    assert [file.name for file, text in expected.items() if file.read_text() != text] == []


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-32b"])
def test_each_is_marked_and_found_by_its_name(gpu: str, model: str) -> None:
    found = find_profile(f"{gpu}-{model}")
    assert (found.name, found.origin) == (f"{gpu}-{model}", "computed")
    assert found.made["bandwidth"] > 1e12
    assert all(table.points for kind, table in found.tables.items() if kind != "accept")


def test_one_node_takes_as_long_as_reading_the_weights_and_many_as_long_as_the_arithmetic() -> None:
    found = find_profile("h100-llama-3.1-8b")
    weights = 8.03e9 - 128_256 * 4096  # the embedding is not read
    assert found.verify(1, 256) == pytest.approx(2 * weights / (0.8 * 3.35e12), rel=0.02)
    assert found.verify(16 * 256, 256, 16) == pytest.approx(2 * weights * 16 * 256 / (0.6 * 989e12), rel=0.1)


@pytest.mark.parametrize(("model", "billions"), [("llama-3.1-8b", 8.03), ("qwen3-32b", 32.8)])
def test_the_shapes_have_the_models_parameters(model: str, billions: float) -> None:
    assert find_profile(f"h100-{model}").model["parameters"] == pytest.approx(billions * 1e9, rel=0.01)
