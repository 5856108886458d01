"""The folders of the code: no module imports one that imports it, none a higher folder, and few a large library."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "talon_core": ROOT / "talon_core",
    "talon_strategies": ROOT / "strategies/talon_strategies",
    "talon_drafters": ROOT / "drafters/talon_drafters",
    "talon_kernels": ROOT / "kernels/talon_kernels",
}
BASICS, CONTRACTS = "basics", "contracts"
FOLDERS = (
    *(BASICS, CONTRACTS, "pictures", "retrieval", "runtime", "models", "engine", "plugins", "certificates"),
    *("decoding", "hf", "bench", "profiles", "trace", "tune", "report", "certify", "testing", "cli", "peers"),
)
"""The folders of `talon_core`, each above those that it may import; the files beside them are the contracts."""
FLAT_BASICS = {"talon_core.errors"}
"""What belongs to the basics and lies flat, because users and plugins import it."""
IMPORTED_BY = {
    "talon_strategies": {BASICS, CONTRACTS},
    "talon_kernels": {BASICS, CONTRACTS, "runtime"},
    "talon_drafters": {BASICS, CONTRACTS, "runtime", "models", "retrieval"},
}
"""The folders that plugins of ours import."""
IMPORTED_BY_PEERS = {"peers", BASICS, CONTRACTS, "models", "runtime", "plugins", "hf"}
"""The folders that our peers import: a plugin in the core's folder, and the last one, so that nobody imports them.

One that is given a drafter's head finds the drafter by its name."""
IMPORTED_BESIDES = {
    "talon_drafters.draft_model.drafter": {"hf"},
    "talon_drafters.hybrid.drafter": {"engine"},
    "talon_drafters.hybrid.fitting": {"engine", "plugins", "trace"},
    "talon_drafters.hybrid.options": {"plugins"},
    "talon_drafters.hydra.drafter": {"hf"},
    "talon_strategies.bandit": {"plugins"},
    "talon_strategies.fitting.__main__": {"trace"},
    "talon_strategies.fitting.examples": {"trace"},
    "talon_strategies.fitting.texts": {"plugins", "trace"},
    "talon_strategies.schedules.cached": {"plugins"},
    "talon_strategies.taps": {"plugins"},
}
"""What single modules import besides: a draft model and the prefix layer of Hydra are of transformers; a drafter of
several drafters finds them by name, and checks what they answer; policies of other policies and a schedule with a
drafter of its own find them by name, and what is predicted with is fitted on traces."""
IMPORTED_ABOVE = {
    "talon_core": {"decoding", "engine", "hf"},
    "talon_core.attention": {"runtime"},
    "talon_core.decoding.loading": {"hf"},
    "talon_core.rounds": {"pictures"},
    "talon_core.tree": {"pictures"},
}
"""The higher folders that modules of the core import, none of them when they are imported themselves: `import
talon_core` gives names of all folders, each when it is first used; a backend is written with the type of what records
passes for it; `load` takes the adapter once it has a model of transformers; and a notebook asks trees and rounds for a
picture."""
WITHOUT_TORCH = {
    *("talon_core.engine.engine", "talon_core.table", "talon_core.decoding.decoder", "talon_core.certify.trial"),
    *("talon_core.cli.certify", "talon_core.testing.table"),
}
"""What decodes and certifies with tables, which needs no torch."""
LOADS_TRANSFORMERS = {f"talon_core.models.{module}" for module in ("loading", "convert", "gguf_model", "gguf_weights")}
"""Modules below the adapter that import transformers: in functions, which load a model or convert one."""


@attrs.frozen
class Import:
    """One import: which module, of which, and whether it runs when the module is imported."""

    module: str
    imported: str
    runs: bool


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = [*path.relative_to(folder).with_suffix("").parts]
            found[".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


MODULES = modules()


def imports_of(module: str, source: str) -> Iterator[Import]:
    """Every import of one of our modules, wherever it stands; one that is for type checkers alone does not run."""

    def within(node: ast.AST, runs: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inner = runs and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = False
            if isinstance(child, ast.Import):
                yield from (Import(module, name.name, runs) for name in child.names if name.name in MODULES)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"{module} imports relatively"
                for name in child.names:
                    whole = f"{child.module}.{name.name}"
                    target = whole if whole in MODULES else child.module
                    if target in MODULES:
                        yield Import(module, str(target), runs)
            else:
                yield from within(child, inner)

    yield from within(ast.parse(source), True)


@cache
def all_imports() -> list[Import]:
    """Those of all modules; not read where tests are only collected, as every worker does."""
    return [one for module, path in MODULES.items() for one in imports_of(module, path.read_text(encoding="utf-8"))]


def folder(module: str) -> str:
    if module in FLAT_BASICS:
        return BASICS
    parts = module.replace("__main__", "cli").split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else CONTRACTS


def circle(edges: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def packages(module: str) -> set[str]:
    """Those that a module is in, which Python imports before it."""
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def test_no_module_imports_one_that_imports_it() -> None:
    """So each can be imported as the first one."""
    edges: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in all_imports():
        if one.runs:
            edges[one.module] |= {one.imported} | packages(one.imported) - packages(one.module) - {one.module}
    assert circle(edges) is None


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None


def test_no_folder_imports_a_higher_one() -> None:
    """Within functions neither, and not for type checkers."""
    core = [
        one for one in all_imports() if one.module.startswith("talon_core") and one.imported.startswith("talon_core")
    ]
    above: dict[str, set[str]] = {}
    for one in core:
        if FOLDERS.index(folder(one.imported)) > FOLDERS.index(folder(one.module)):
            assert not one.runs, f"{one.module} imports {one.imported}"
            above.setdefault(one.module, set()).add(folder(one.imported))
    assert above == IMPORTED_ABOVE


def test_what_a_plugins_author_tests_with_is_imported_by_nothing_else() -> None:
    assert not [one for one in all_imports() if folder(one.imported) == "testing" and folder(one.module) != "testing"]


def test_every_folder_of_the_core_has_its_place_among_them() -> None:
    folders = {path.name for path in (ROOT / "talon_core").iterdir() if (path / "__init__.py").exists()}
    assert folders == {*FOLDERS} - {CONTRACTS}


def test_the_core_imports_no_strategy_drafter_or_kernel() -> None:
    wrong = [
        one for one in all_imports()
        if one.module.startswith("talon_core") and not one.imported.startswith("talon_core")
    ]  # fmt: skip
    assert not wrong


def test_the_adapter_to_transformers_is_imported_by_nothing_at_module_level() -> None:
    wrong = [
        f"{one.module} imports {one.imported}"
        for one in all_imports()
        if one.runs and one.imported.startswith("talon_core.hf") and not one.module.startswith("talon_core.hf")
    ]
    assert not wrong


def test_our_plugins_import_the_contracts_and_a_folder_or_two() -> None:
    besides: dict[str, set[str]] = {}
    for one in all_imports():
        package = one.module.split(".")[0]
        of_core = one.imported.startswith("talon_core")
        if of_core and package in IMPORTED_BY and folder(one.imported) not in IMPORTED_BY[package]:
            besides.setdefault(one.module, set()).add(folder(one.imported))
    modules = {one.module for one in all_imports()}
    there = {module: folders for module, folders in IMPORTED_BESIDES.items() if module in modules}
    assert besides == there  # a drafter that was deleted has its line there, and imports nothing


def test_our_peers_import_what_a_plugin_may_and_nothing_imports_them() -> None:
    theirs = {folder(one.imported) for one in all_imports() if folder(one.module) == "peers"}
    assert theirs <= IMPORTED_BY_PEERS
    assert not [one for one in all_imports() if folder(one.imported) == "peers" and folder(one.module) != "peers"]


def found_in(source: str, library: str) -> tuple[bool, bool]:
    """Whether a module imports a library, but for type checkers, and whether it does when it is imported itself."""

    def within(node: ast.AST, runs: bool) -> Iterator[bool]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            names = [child.module or ""] if isinstance(child, ast.ImportFrom) else []
            names += [one.name for one in child.names] if isinstance(child, ast.Import) else []
            if any(name.split(".")[0] == library for name in names):
                yield runs
            yield from within(child, runs and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    found = [*within(ast.parse(source), True)]
    return bool(found), any(found)


def test_an_import_of_a_library_is_found_wherever_it_stands() -> None:
    assert found_in("import torch", "transformers") == (False, False)
    assert found_in("if True:\n    from transformers.utils import logging", "transformers") == (True, True)
    assert found_in("def load():\n    import transformers", "transformers") == (True, False)
    assert found_in("if TYPE_CHECKING:\n    from torch import Tensor", "torch") == (False, False)
    assert found_in("class Wide:\n    import torch.nn", "torch") == (True, True)


def loaded_by(modules: Iterable[str]) -> set[str]:
    """What is imported when these modules are, they themselves and what holds them among it."""
    imported: dict[str, set[str]] = {module: packages(module) for module in MODULES}
    for one in all_imports():
        if one.runs:
            imported[one.module] |= {one.imported} | packages(one.imported)
    found, waiting = set[str](), [*modules]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imported.get(module, set())
    return found & {*MODULES}


def test_the_loop_over_tables_policies_and_rules_import_no_torch() -> None:
    """What they import in functions, where it is met, is in `engine/test_without_torch.py`."""
    policies = {name for name in MODULES if name.startswith("talon_strategies")}
    fitting = {name for name in policies if name.startswith("talon_strategies.fitting")}  # of networks
    loaded = loaded_by({*WITHOUT_TORCH, *policies - fitting})
    assert {"talon_core.engine.stages", "talon_core.drafter", "talon_core.certify.worlds"} <= loaded
    wrong = {
        (name, library)
        for name in loaded
        for library in ("torch", "transformers")
        if found_in(MODULES[name].read_text(encoding="utf-8"), library)[1]
    }
    assert not wrong


@pytest.mark.parametrize("below", FOLDERS[: FOLDERS.index("hf")])
def test_no_transformers_below_the_adapter_but_where_a_model_is_loaded(below: str) -> None:
    own = {name: path for name, path in MODULES.items() if name.startswith("talon_core") and folder(name) == below}
    found = {name: found_in(path.read_text(encoding="utf-8"), "transformers") for name, path in own.items()}
    assert {name for name, (somewhere, _) in found.items() if somewhere} == LOADS_TRANSFORMERS & {*own}
    assert not any(at_once for _, at_once in found.values())
