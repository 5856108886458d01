"""The profiles that come with TALON are what `tools/computed_profiles.py` works out, and marked as computed."""

import importlib.util
import json
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
    assert all(table.points for kind, table in found.tables.items() if kind not in ("accept", "rest", "chain"))


def test_one_node_takes_as_long_as_reading_the_weights_and_many_as_long_as_the_arithmetic() -> None:
    found = find_profile("h100-llama-3.1-8b")
    weights = 8.03e9 - 128_256 * 4096  # the embedding is not read
    assert found.verify(1, 256) == pytest.approx(2 * weights / (0.8 * 3.35e12), rel=0.02)
    assert found.verify(16 * 256, 256, 16) == pytest.approx(2 * weights * 16 * 256 / (0.6 * 989e12), rel=0.1)


@pytest.mark.parametrize(("model", "billions"), [("llama-3.1-8b", 8.03), ("qwen3-32b", 32.8)])
def test_the_shapes_have_the_models_parameters(model: str, billions: float) -> None:
    assert find_profile(f"h100-{model}").model["parameters"] == pytest.approx(billions * 1e9, rel=0.01)


CONFIG = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}
"""Of Llama-3.1-8B, which leaves the width of a head out."""


def test_a_profile_of_another_gpu_and_of_a_model_by_its_configuration(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG))
    out = tmp_path / "other.json"
    gpu = ["--gpu", "NVIDIA H100 80GB HBM3", "--bandwidth", "3.35", "--peak", "989"]
    before = {file: file.read_text() for file in COMPUTED.glob("*.json")}
    tool.main(["--out", str(out), *gpu, "--model", str(tmp_path / "mine")])
    assert {file: file.read_text() for file in COMPUTED.glob("*.json")} == before
    found, shipped = find_profile(str(out)), find_profile("h100-llama-3.1-8b")
    assert (found.name, found.origin, found.model["name"]) == ("other", "computed", "mine")
    assert found.machine == shipped.machine
    assert {kind: table.points for kind, table in found.tables.items()} == {
        kind: table.points for kind, table in shipped.tables.items()
    }
    tool.main(["--out", str(out), "--gpu", "h100", "--model", "llama-3.1-8b", "--draft-vocab", "128256"])
    assert find_profile(str(out)).draft(1, 1) > shipped.draft(1, 1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--gpu", "h100", "--model", "qwen3-32b"], "which needs --out"),
        (["--out", "x.txt", "--gpu", "h100", "--model", "qwen3-32b"], "its name must end in .json"),
        (["--out", "x.json", "--gpu", "h100"], "--out needs --gpu and --model"),
        (
            ["--out", "x.json", "--gpu", "h100", "--peak", "1", "--model", "qwen3-32b"],
            "whose --bandwidth and --peak are",
        ),
        (["--out", "x.json", "--gpu", "NVIDIA L4", "--peak", "1", "--model", "qwen3-32b"], "give its --bandwidth and"),
    ],
)
def test_what_is_of_no_use_is_refused(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    with pytest.raises(SystemExit):
        tool.main(arguments)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"num_local_experts": 8}, "is of a mixture of experts"),
        ({"text_config": {"hidden_size": 8}}, "does not say num_attention_heads"),
    ],
)
def test_a_model_whose_passes_cannot_be_worked_out_is_refused(
    tool: ModuleType, tmp_path: Path, said: dict[str, object], why: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **said}))
    with pytest.raises(SystemExit, match=why):
        tool.main(["--out", str(tmp_path / "x.json"), "--gpu", "h100", "--model", str(tmp_path)])
    assert not (tmp_path / "x.json").exists()
