"""The API reference is what the docstrings say now, and holds everything that is public."""

import ast
import copy
import importlib.util
import re
import sys
from pathlib import Path

import attrs
import pytest

import talon_core
import talon_core.testing
from talon_core.plugins.registry import load_registry

ROOT = Path(__file__).parents[2]
BUILT = "talon_last_state.drafter"
"""A module that `docs/writing-a-drafter.md` makes."""

PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]


@pytest.fixture(scope="module")
def tool():
    """`tools/api_reference.py`, which is a script and in no package."""
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "tools" / "api_reference.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def reference(tool):
    return tool.Reference()


def test_the_pages_are_what_the_docstrings_say(tool, reference):
    assert [str(path.relative_to(ROOT)) for path in tool.stale(reference.pages())] == [], "run: make docs"


def test_a_page_that_was_edited_by_hand_or_belongs_to_nothing_is_out_of_date(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "DOCS", tmp_path)
    (tmp_path / "api").mkdir()
    contents, page, old = tmp_path / "api.md", tmp_path / "api" / "rules.md", tmp_path / "api" / "old.md"
    contents.write_text("as written")
    page.write_text("edited")
    old.write_text("of a page that is gone")
    assert tool.stale({contents: "as written", page: "as written"}) == [old, page]


def test_every_public_name_is_in_the_reference(reference):
    assert {*talon_core.__all__, *talon_core.testing.__all__} <= set(reference.names)


def test_every_part_that_comes_with_talon_is_in_the_reference(reference):
    for entries in load_registry().entries.values():
        for entry in entries.values():
            if entry.plugin.startswith("talon-core:"):
                assert (
                    reference.names[entry.cls.__name__].code.canonical_path
                    == f"{entry.cls.__module__}.{entry.cls.__name__}"
                )


def test_a_name_is_imported_from_where_the_reference_says(reference):
    for each in reference.names.values():
        assert hasattr(importlib.import_module(each.module), each.name), f"{each.module} has no {each.name}"


def imported(page: Path) -> set[tuple[str, str]]:
    """What the examples of a page import of TALON, but for what the page itself builds; pairs of module and name."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    found = {(str(node.module), alias.name) for node in nodes for alias in node.names}
    return {(module, name) for module, name in found if module.startswith("talon_") and module != BUILT}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_the_manual_imports_is_in_the_reference(page, reference):
    for module, name in imported(page):
        assert name in reference.names, f"{module}.{name} is not public: give it an entry in tools/api_pages.py"
        code = getattr(importlib.import_module(module), name)
        public = reference.names[name]
        assert code is getattr(importlib.import_module(public.module), name)


SOURCE = '''
import attrs
from somewhere import Base

LENGTH = 5


@attrs.frozen
class Options(Base):
    """What can be set."""

    name = "options"
    length: int = attrs.field(default=LENGTH, validator=whole)
    texts: list[str] = attrs.field(factory=list)
    memory: dict[str, int] = attrs.field(init=False, factory=dict)


@attrs.frozen
class Again(Options):
    """Declares an option again."""

    length: int = attrs.field(default=7)
    more: float = 0.5


def call(self, one, two: int = LENGTH, *rest: str, three: bool = False, **more: int) -> str:
    """Calls."""


def bare(one, *, two): ...
'''


@pytest.fixture(scope="module")
def read(tool):
    import griffe

    known = griffe.ModulesCollection()  # in which bases are looked up
    known["source"] = griffe.visit("source", filepath=Path("source.py"), code=SOURCE, modules_collection=known)
    return known["source"]


def test_a_class_of_attrs_is_shown_with_the_options_that_it_takes(tool, read):
    assert tool.constructor(read["Options"]) == "Options(length: int = 5, texts: list[str] = [])"


def test_an_option_that_is_declared_again_is_shown_once_and_where_attrs_has_it(tool, read):
    assert tool.constructor(read["Again"]) == "Again(texts: list[str] = [], length: int = 7, more: float = 0.5)"


def test_a_function_is_shown_as_it_is_called(tool, read):
    shown = "call(one, two: int = 5, *rest: str, three: bool = False, **more: int) -> str"
    assert tool.signature(read["call"]) == shown
    assert tool.signature(read["bare"]) == "bare(one, *, two)"


def test_what_is_public_and_has_no_docstring_is_an_error_that_names_it(tool, read):
    with pytest.raises(ValueError, match=re.escape("source.bare is public and has no docstring")):
        tool._docstring(read["bare"])


def anew(reference):
    """The same packages, of which nothing has been asked yet: to read them takes long."""
    other = copy.copy(reference)
    vars(other).pop("names", None)
    return other


def test_a_public_name_without_a_page_is_an_error_that_says_what_to_add(tool, reference, monkeypatch):
    monkeypatch.setattr(tool, "PAGES", [page for page in tool.PAGES if page.file != "rules"])
    with pytest.raises(ValueError, match=r"talon_core\.AcceptanceRule is on no page: add 'talon_core\.rule'"):
        _ = anew(reference).names


def test_an_entry_for_what_is_gone_is_an_error_that_names_it(tool, reference, monkeypatch):
    monkeypatch.setattr(tool, "PAGES", [attrs.evolve(tool.PAGES[0], entries=("talon_core.rule:nothing",))])
    with pytest.raises(ValueError, match=r"there is no talon_core\.rule\.nothing"):
        _ = anew(reference).names
