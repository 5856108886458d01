"""The reference pages are complete: every hook, every built-in with its options, every abbreviation."""

import inspect
import re
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from talon_core import hookspecs
from talon_core.drawn import KINDS as TREE_KINDS
from talon_core.plugins.registry import KINDS, load_registry
from talon_core.plugins.specs import describe_options

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("drafters/*.md"), ROOT / "README.md"])
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


def policy_sections() -> dict[str, str]:
    return sections("policies.md")


def rule_sections() -> dict[str, str]:
    return sections("rules.md")


def drafter_pages() -> dict[str, str]:
    """The text of each drafter's page, under its title."""
    pages = (page.read_text() for page in DOCS.glob("drafters/*.md"))
    return {text.partition("\n")[0].removeprefix("# "): text.partition("\n")[2] for text in pages}


def peer_sections() -> dict[str, str]:
    parts = re.split(r"^### (.*)$", sections("peers.md")["Those that come with TALON"], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


DESCRIBED = [
    *(("tree policy", policy_sections), ("rule", rule_sections), ("drafter", drafter_pages)),
    ("peer", peer_sections),
]


@pytest.mark.parametrize(("kind", "described"), DESCRIBED)
def test_what_is_said_of_every_built_in_begins_with_its_options_and_defaults(kind, described):
    found = described()
    for name, entry in load_registry().entries[kind].items():
        if entry.plugin.startswith("talon-core:"):
            options = ",".join(f"{option}={text_of(value)}" for option, value in describe_options(entry.cls).items())
            assert name in found, f"the manual says nothing of the {kind} {name}"
            assert found[name].strip().splitlines()[0] == f"`{name}:{options}`".replace(":`", "`")


@pytest.mark.parametrize(("kind", "described"), DESCRIBED)
def test_everything_that_is_described_is_registered(kind, described):
    assert set(described()) - {"none"} <= set(load_registry().names(kind))


def test_the_paper_that_is_listed_is_the_one_that_the_manual_names():
    named = 0
    for kind, described in DESCRIBED[:3]:
        found = described()
        for name, entry in load_registry().entries[kind].items():
            if entry.plugin.startswith("talon-core:") and entry.cls.paper:
                assert entry.cls.paper.removeprefix("arXiv ") in found[name], name
                named += 1
    assert named > 30


def test_a_policy_with_another_default_rule_than_match_links_to_it_and_the_rule_names_the_kind():
    rules = load_registry().entries["rule"]
    for name, entry in load_registry().entries["tree policy"].items():
        if entry.plugin.startswith("talon-core:") and entry.cls.default_rule != "match":
            rule = entry.cls.default_rule
            assert f"[`{rule}`](rules.md#{rule})" in " ".join(policy_sections()[name].split())
            assert all(f"`{kind}`" in rule_sections()[rule] for kind in rules[rule].cls.exact_for)


def test_the_hooks_page_tells_of_every_kind_of_tree():
    table = sections("hooks.md")["talon_rules() -> list[type[AcceptanceRule]]"]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(TREE_KINDS)


def test_the_drafters_page_links_to_the_page_of_each():
    for page in DOCS.glob("drafters/*.md"):
        assert f"[`{page.stem}`](drafters/{page.name})" in (DOCS / "drafters.md").read_text()
        assert page.read_text().startswith(f"# {page.stem}\n")


def terms() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    return [row for row in rows if row != "term"]


def test_the_glossary_is_in_alphabetical_order_without_repetitions():
    listed = [term.lower().replace("-", "") for term in terms()]
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_abbreviation_of_a_page_is_in_the_glossary(page):
    prose = CODE.sub("", re.sub(r"\]\([^)]*\)", "]", page.read_text()))
    known = {word for term in terms() for word in (*term.split(), *term.upper().split())}
    used = set(re.findall(r"\b[A-Z]{2,}\b", prose))
    assert sorted(used - known) == []
