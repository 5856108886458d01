"""What is installed, what an import loads, and that the package built from this checkout works elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = {"talon-strategies": "talon_strategies", "talon-drafters": "talon_drafters", "talon-kernels": "talon_kernels"}
INSIDE = {"talon-peers": "talon_core.peers"}
"""A plugin like these, in the core's folder."""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The standard output of a command that must succeed, without this process' own import path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("folder", ["strategies", "drafters", "kernels"])
def test_an_outer_folder_is_no_package(folder: str) -> None:
    # With one, `import kernels` would find ours where transformers looks for Hugging Face's.
    assert not (ROOT / folder / "__init__.py").exists()


def test_importing_talon_core_loads_nothing_heavy_and_no_plugin(tmp_path: Path) -> None:
    loaded = set(run(sys.executable, "-c", "import sys, talon_core; print(*sys.modules)", cwd=tmp_path).split())
    heavy = {"torch", "triton", "transformers", "tokenizers", "accelerate", "gguf", "hypothesis", "pytest", "pip"}
    assert loaded & {*heavy, *PLUGINS.values(), *INSIDE.values()} == set()


def test_importing_the_testing_helpers_needs_no_plugin(tmp_path: Path) -> None:
    code = "import sys, talon_core.testing; print(*sys.modules)"
    assert set(run(sys.executable, "-c", code, cwd=tmp_path).split()) & {*PLUGINS.values(), "triton"} == set()


def test_the_built_in_plugins_are_found_through_their_entry_points() -> None:
    found = {point.name: point for point in entry_points(group="talon")}
    for name, module in {**PLUGINS, **INSIDE}.items():
        assert found[name].value == module
        assert found[name].load().__name__ == module


def test_the_command_is_an_entry_point() -> None:
    [talon] = entry_points(group="console_scripts", name="talon")
    assert talon.value == "talon_core.cli:main"


def test_every_declared_dependency_is_pinned() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {normal(re.split(r"[^A-Za-z0-9_.-]", line)[0]) for line in requirements}

    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", pin) for pin in pins), "an exact version, no +cpu"
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    assert names(wanted) - names(pins) == set()


def all_names(listing: Any) -> set[str]:
    """Every value of a key "name", and every key of a mapping, anywhere in a JSON object."""
    if isinstance(listing, dict):
        named = {listing["name"]} if isinstance(listing.get("name"), str) else set()
        return named.union(listing, *map(all_names, listing.values()))
    if isinstance(listing, list):
        return set().union(*map(all_names, listing))
    return set()


STORED = """
import zlib

compressobj = zlib.compressobj
zlib.compressobj = lambda level=-1, *how, **named: compressobj(0, *how, **named)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source distribution, the wheel built from the latter.

    Both hold megabytes of weights, which take seconds to compress and get no smaller: nothing is compressed.
    """
    folder, stored = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("stored")
    (stored / "sitecustomize.py").write_text(STORED)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder, PYTHONPATH=str(stored))
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_four_packages_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {"talon_core", *PLUGINS.values()}
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == packages
    assert packages <= {name.split("/")[0] for name in names if name.endswith("/py.typed")}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".gguf")]
    kinds = [folder.parent.name for folder in (ROOT / "drafters/talon_drafters").glob("*/shipped")]
    assert "eagle3" in kinds
    for kind in kinds:
        shipped = [name for name in names if name.startswith(f"talon_drafters/{kind}/shipped/smollm2-135m/")]
        assert {name.rpartition(".")[2] for name in shipped} == {"md", "json", "safetensors"}
    heads = [name for name in names if name.startswith("talon_strategies/shipped/smollm2-135m-eagle3/")]
    assert {name.rpartition("/")[2] for name in heads} == {"README.md", "speckv.safetensors", "taps.safetensors"}
    assert "talon_core/plugins/shipped/default.json" in names
    assert {f"talon_core/report/page.{kind}" for kind in ("html", "css", "js")} <= {*names}
    trace = [name for name in names if name.startswith("talon_core/testing/trace/")]
    assert {name.rpartition(".")[2] for name in trace} == {"md", "json", "jsonl", "safetensors"}


@pytest.mark.slow
def test_the_source_distribution_can_be_tested(built: Path) -> None:
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "Makefile", "constraints.txt", "LICENSE", "README.md"} <= names
    assert {"tests/test_packaging.py", "tools/api_reference.py"} <= names
    example = "docs/example-drafter"
    assert {f"{example}/train.py", f"{example}/src/talon_last_state/smollm2-135m.safetensors"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(built: Path, tmp_path: Path) -> None:
    [wheel] = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    scripts = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    [site] = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).split()
    # Lends torch and the like without network. A .pth file in a folder lent so is not read, so this checkout, which is
    # installed there in editable form, stays out.
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site) / "lent.pth").write_text("".join(f"{path}\n" for path in sorted(lent)))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    run(*pip, "--force-reinstall", wheel, cwd=tmp_path)

    code = "import talon_core, talon_strategies; print(talon_core.__file__); print(talon_strategies.__file__)"
    for path in run(python, "-c", code, cwd=tmp_path).split():
        assert Path(path).is_relative_to(tmp_path)
    listing = json.loads(run(scripts / "talon", "list", "policies", "--json", cwd=tmp_path))
    assert {"talon", "static", "eagle2"} <= all_names(listing)
