"""The reference pages are complete: every hook, every built-in with its options, every abbreviation."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from talon_core import hookspecs
from talon_core.registry import KINDS, load_registry
from talon_core.specs import describe_options

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md"])
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HOOKS = {hook: getattr(hookspecs, hook) for hook, _ in KINDS.values()}


def sections(page: str) -> dict[str, str]:
    """The text under each second-level heading of a page."""
    parts = re.split(r"^## (.*)$", (DOCS / page).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_hook_is_of_a_kind_that_can_be_looked_up():
    assert set(HOOKS) == {name for name in vars(hookspecs) if name.startswith("talon_")}


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_heading_that_is_its_signature_and_a_plugin_under_it(hook):
    signature = re.sub(r"'", "", f"{hook}{inspect.signature(HOOKS[hook])}")
    assert signature in sections("hooks.md")
    assert f"@hookimpl\ndef {signature}:" in sections("hooks.md")[signature]


def test_the_hooks_page_has_no_heading_that_is_no_hook():
    assert {heading.partition("(")[0] for heading in sections("hooks.md")} == set(HOOKS)


def test_the_plugins_of_the_hooks_page_are_accepted_by_the_registry():
    page = ModuleType("page")
    for block in re.findall(r"^```python\n(.*?)^```$", (DOCS / "hooks.md").read_text(), re.MULTILINE | re.DOTALL):
        exec(block, vars(page))
    registry = load_registry([("page:page", lambda: page)])
    assert registry.failures == {}
    assert all(len(entries) == 1 for entries in registry.entries.values())


def text_of(value: object) -> str:
    """A default as it is written in a spec."""
    if value is attrs.NOTHING:
        return "..."
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return "" if value == () else str(value)


@pytest.mark.parametrize(("page", "kind"), [("policies.md", "tree policy"), ("drafters.md", "drafter")])
def test_every_built_in_has_a_section_that_begins_with_its_options_and_defaults(page, kind):
    found = sections(page)
    for name, entry in load_registry().entries[kind].items():
        if entry.plugin.startswith("talon-core:"):
            options = ",".join(f"{option}={text_of(value)}" for option, value in describe_options(entry.cls).items())
            assert name in found, f"{page} has no section {name}"
            assert found[name].strip().splitlines()[0] == f"`{name}:{options}`".replace(":`", "`")


@pytest.mark.parametrize(("page", "kind"), [("policies.md", "tree policy"), ("drafters.md", "drafter")])
def test_every_section_is_about_something_that_is_registered(page, kind):
    assert set(sections(page)) - {"none"} <= set(load_registry().names(kind))


def terms() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    return [row for row in rows if row != "term"]


def test_the_glossary_is_in_alphabetical_order_without_repetitions():
    listed = [term.lower().replace("-", "") for term in terms()]
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_abbreviation_of_a_page_is_in_the_glossary(page):
    prose = CODE.sub("", re.sub(r"\]\([^)]*\)", "]", page.read_text()))
    known = {word for term in terms() for word in term.split()}
    used = set(re.findall(r"\b[A-Z]{2,}\b", prose))
    assert sorted(used - known) == []
