"""One drafter, one folder: none imports another's, and each can be deleted with nothing else than its registration."""

import ast
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import talon_drafters
from talon_core.plugins.registry import load_registry

PACKAGE = Path(__file__).parents[2] / "drafters" / "talon_drafters"
SHARED = ("lookup", "checkpoints", "heads", "training")
"""The folders that several drafters share; each imports only itself and those before it."""

FOLDERS = sorted(
    folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists() and folder.name not in SHARED
)
REGISTERED = (*talon_drafters.talon_drafters(), *talon_drafters.talon_recipes())
CLASSES = {cls: cls.__module__.split(".")[1] for cls in REGISTERED}
"""What is registered, and the folder that it comes from."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys, traceback

def imported(folder):
    for module in [module for module in sys.modules if module.split(".")[0] == "talon_drafters"]:
        del sys.modules[module]
    sys.path[0] = folder
    importlib.invalidate_caches()
    import talon_drafters
    for module in pkgutil.walk_packages(talon_drafters.__path__, "talon_drafters."):
        importlib.import_module(module.name)
    classes = [*talon_drafters.talon_drafters(), *talon_drafters.talon_recipes()]
    modules = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "talon_drafters"}
    return {"classes": [cls.__name__ for cls in classes], "modules": modules}

found = {}
for folder in sys.argv[1:]:
    try:
        found[folder] = imported(folder)
    except Exception:
        found[folder] = traceback.format_exc()
print(json.dumps(found))
"""


def files_of(folder: str) -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


def folders_imported(source: str) -> Iterator[str]:
    """The folders of the package from which something is imported, also within functions and for type checkers."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{one.name}" for one in node.names]
        for name in names:
            package, *inner = name.split(".")
            if package == "talon_drafters" and inner:
                yield inner[0]


def without(folder: str, source: str) -> str:
    """The package's `__init__.py` without one folder's registration, a line for its import and one for each class."""
    lines = source.splitlines(keepends=True)
    (imported,) = [line for line in lines if line.startswith(f"from talon_drafters.{folder} import ")]
    registered = {f"        {name.strip()},\n" for name in imported.partition(" import ")[2].split(",")}
    kept = [line for line in lines if line != imported and line not in registered]
    assert len(lines) - len(kept) == 1 + len(registered)
    return "".join(kept)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By folder, a copy of the package without it."""
    made = {}
    for folder in FOLDERS:
        made[folder] = tmp_path_factory.mktemp(folder)
        copy = made[folder] / "talon_drafters"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "shipped"))
        shutil.rmtree(copy / folder)
        file = copy / "__init__.py"
        file.write_text(without(folder, file.read_text(encoding="utf-8")), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def loaded(copies: dict[str, Path], forked_python: str) -> dict[str, Any]:
    """By copy, the classes that it registers and its modules, all imported; or how that failed."""
    done = subprocess.run(
        [forked_python, "-c", IMPORT_ALL, *map(str, copies.values())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_and_its_registration_are_all_that_goes_when_a_drafter_is_deleted(
    folder: str, copies: dict[str, Path], loaded: dict[str, Any]
) -> None:
    found = loaded[str(copies[folder])]
    assert isinstance(found, dict), found
    assert found["classes"] == [cls.__name__ for cls, its in CLASSES.items() if its != folder]
    assert {Path(file) for file in found["modules"].values()} == {*copies[folder].rglob("*.py")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_drafter_imports_its_own_folder_and_what_is_shared(folder: str) -> None:
    for file in files_of(folder):
        assert set(folders_imported(file.read_text(encoding="utf-8"))) <= {folder, *SHARED}, file


@pytest.mark.parametrize("place", range(len(SHARED)), ids=SHARED)
def test_what_is_shared_imports_no_drafter(place: int) -> None:
    for file in files_of(SHARED[place]):
        assert set(folders_imported(file.read_text(encoding="utf-8"))) <= {*SHARED[: place + 1]}, file


def test_an_import_is_found_wherever_it_stands() -> None:
    source = (
        "import talon_drafters.eagle.files\nfrom talon_drafters import ngram\n"
        "def later():\n    from talon_drafters.hydra.files import STEM\n"
    )
    assert set(folders_imported(source)) == {"eagle", "ngram", "hydra"}


@pytest.mark.parametrize("folder", SHARED)
def test_the_code_of_what_is_shared_names_no_drafter(folder: str) -> None:
    def check(text: str, file: Path) -> None:
        assert not [name for name in (*FOLDERS, "draft-model") if name in text.lower()], f"{file}: {text}"

    for file in files_of(folder):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                check(node.value, file)
            for kind in ("id", "attr", "name", "arg"):
                if isinstance(name := getattr(node, kind, None), str):
                    check(name, file)


def test_each_folder_registers_the_drafter_of_its_name() -> None:
    entries = load_registry().entries["drafter"].values()
    ours = {entry.name: CLASSES[entry.cls] for entry in entries if entry.cls in CLASSES}
    assert ours == {folder.replace("_", "-"): folder for folder in FOLDERS}
