"""Writes the API reference, `docs/api.md` and `docs/api/`, from the docstrings of everything that is public.

`make docs` runs it; `tests/docs/test_api_reference.py` fails where the pages are not what it would write. The code is
read, not imported, so it takes a second and needs nothing but griffe. A new name of `talon_core.__all__` gets its place
by the module that it is in; what is public beside `__all__` stands in `tools/api_pages.py` by its name.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import griffe

sys.path.insert(0, str(Path(__file__).parent))
from api_pages import PAGES, Page
from api_signatures import constructor, is_field, signature

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FOLDERS = (".", "strategies", "drafters", "kernels")


HEADINGS = {"parameters": "Arguments", "attributes": "Attributes", "raises": "Raises"}


@attrs.frozen(eq=False)
class Documented:
    """A public name: where it is imported from, its page, and the code that it stands for."""

    name: str
    module: str
    page: Page
    code: Any

    @property
    def link(self) -> str:
        return f"{self.page.file}.md#{self.name.lower()}"


class Reference:
    """Every public name, and the pages that are made of them.

    Raises:
        ValueError: while pages are made, if something public has no page or no docstring.
    """

    def __init__(self) -> None:
        folders = [ROOT / folder for folder in FOLDERS]
        loader = griffe.GriffeLoader(search_paths=folders, docstring_parser="google", allow_inspection=False)
        names = dict.fromkeys(re.split(r"[.:]", entry)[0] for page in PAGES for entry in page.entries)
        self._packages: dict[str, Any] = {name: loader.load(name) for name in names}
        loader.resolve_aliases()

    @cached_property
    def names(self) -> dict[str, Documented]:
        """Everything that is public, by name, in the order of the pages."""
        found: dict[str, Documented] = {}
        for page in PAGES:
            for entry in page.entries:
                for module, name in self._expanded(entry):
                    found[name] = Documented(name, module, page, self._code(self._home(module, name)))
        for name in self._code("talon_core").exports:
            if name not in found:
                home = self._home("talon_core", name).rpartition(".")[0]
                raise ValueError(f"talon_core.{name} is on no page: add '{home}' to a page's entries")
        return found

    def _expanded(self, entry: str) -> Iterator[tuple[str, str]]:
        """The names that an entry stands for, each with where it is imported from."""
        module, colon, name = entry.partition(":")
        if name == "*":
            yield from ((module, own) for own in self._code(module).exports)
        elif name == "**":
            own = self._code(module).imports
            yield from ((module, each) for each, home in own.items() if str(home).startswith(f"{module}."))
        elif colon:
            package = self._code(module).is_init_module
            yield (module if package else self._home(module, name).rpartition(".")[0]), name
        else:
            package = module.partition(".")[0]
            own = self._code(package).exports
            yield from ((package, one) for one in own if self._home(package, one) == f"{module}.{one}")

    def _home(self, module: str, name: str) -> str:
        """Where a name of a module is defined; a function may be called as the module that it is in."""
        return str(self._code(module).imports.get(name, f"{module}.{name}"))

    def _code(self, path: str) -> Any:
        package, _, rest = path.partition(".")
        try:
            code = self._packages[package][rest] if rest else self._packages[package]
            return code.final_target if code.is_alias else code  # what a package takes over from its own modules
        except KeyError:
            raise ValueError(f"there is no {path}, and an entry of tools/api_pages.py names it") from None

    def pages(self) -> dict[Path, str]:
        """The text of every file."""
        return {DOCS / "api.md": self._contents()} | {
            DOCS / "api" / f"{page.file}.md": self._page(page) for page in PAGES
        }

    def _of(self, page: Page) -> list[Documented]:
        return [each for each in self.names.values() if each.page is page]

    def _contents(self) -> str:
        lines = [
            "# API reference",
            "",
            "Every public name, from its docstring. What is not on these pages is not public",
            "([what may change](compatibility.md)). `make docs` writes them anew.",
        ]
        for page in PAGES:
            lead = page.lead.replace("](../", "](")
            lines += ["", f"## {page.title}", "", lead, "", "| name | what it is |", "|---|---|"]
            for each in self._of(page):
                first = _one_line(_docstring(each.code).value.split("\n\n")[0]).replace("|", "\\|")
                lines.append(f"| [`{each.name}`](api/{each.link}) | {first} |")
        return "\n".join(lines) + "\n"

    def _page(self, page: Page) -> str:
        lines = [f"# {page.title}", "", f"{page.lead} All names are [here](../api.md)."]
        for each in self._of(page):
            lines += ["", f"## {each.name}", "", f"`from {each.module} import {each.name}`", ""]
            lines += self._described(each)
        return "\n".join(lines) + "\n"

    def _described(self, each: Documented) -> list[str]:
        code = each.code
        if not code.is_class:
            return [*_fenced(signature(code) if code.is_function else ""), *self._text(code, each)]
        lines = [*self._kind(each), *_fenced(constructor(code)), *self._text(code, each)]
        for member in _members(code):
            lines += ["", f"### {each.name}.{member.name}", "", *_fenced(signature(member)), *self._text(member, each)]
        return lines

    def _kind(self, each: Documented) -> list[str]:
        """What a class is a kind of, and what a spec calls it."""
        bases = [self._linked(f"`{base.name}`", each) for base in each.code.mro() if base.name in self.names]
        name = each.code.members.get("name")
        spec = f", in specs `{str(name.value)[1:-1]}`" if name is not None and each.page.file == "parts" else ""
        return [f"A {bases[0]}{spec}.".replace("A [`A", "An [`A").replace("A [`E", "An [`E"), ""] if bases else []

    def _text(self, code: Any, owner: Documented) -> list[str]:
        """A docstring as Markdown."""
        lines: list[str] = []
        for section in _docstring(code).parsed:
            kind = section.kind.value
            if kind == "text":
                lines += [self._linked(section.value, owner), ""]
            elif kind in HEADINGS:
                lines += [f"{HEADINGS[kind]}:", ""]
                for item in section.value:
                    word = item.annotation if kind == "raises" else item.name
                    lines.append(f"- `{word}`: {self._linked(_one_line(item.description), owner)}")
                lines.append("")
            elif kind in ("returns", "yields"):
                what = " ".join(_one_line(item.description) for item in section.value)
                lines += [f"{kind.capitalize()}: {self._linked(what, owner)}", ""]
            else:
                raise ValueError(f"the docstring of {code.path} has a section '{kind}', for which there is no form")
        told = [
            f"- `{member.name}`: {self._linked(_one_line(member.docstring.value), owner)}"
            for member in (code.members.values() if code.is_class else ())
            if is_field(code, member) and member.docstring is not None and not member.name.startswith("_")
        ]
        lines += ["Attributes:", "", *told, ""] if told else []
        return lines[:-1]

    def _linked(self, text: str, owner: Documented) -> str:
        """The text, its public names as links; plain words that are functions' names too stay as they are."""

        def link(found: re.Match[str]) -> str:
            name, _, member = found[1].removeprefix("talon_core.").partition(".")
            each = self.names.get(name)
            if each is None or each is owner or not (name[0].isupper() or found[1].startswith("talon_core.")):
                return found[0]
            if not member:
                return f"[{found[0]}]({each.link})"
            known = each.code.is_class and any(one.name == member for one in _members(each.code))
            return f"[{found[0]}]({each.link}{member.lower()})" if known else found[0]

        return re.sub(r"`([\w.]+)`", link, text)


def _members(cls: Any) -> Iterator[Any]:
    """A class's own public methods, properties and constants; an override without a docstring is told at its base."""
    docstring = _docstring(cls)
    told = {item.name for part in docstring.parsed if part.kind.value == "attributes" for item in part.value}
    for name, member in cls.members.items():
        if name.startswith("_") or member.is_alias or name in told or is_field(cls, member):
            continue
        if member.docstring is not None:
            yield member
        elif member.is_function and not any(name in base.members for base in cls.mro()):
            _docstring(member)


def _docstring(code: Any) -> Any:
    if code.docstring is None:
        raise ValueError(f"{code.path} is public and has no docstring")
    return code.docstring


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _fenced(text: str) -> list[str]:
    return ["```text", text, "```", ""] if text else []


def stale(pages: dict[Path, str]) -> list[Path]:
    """Files that are missing, differ from what would be written, or belong to no page any more."""
    there = {path for path in (DOCS / "api.md", *(DOCS / "api").glob("*.md")) if path.exists()}
    return sorted(path for path in there | pages.keys() if path not in there or path.read_text() != pages.get(path))


def main() -> None:
    """Write the pages that are out of date."""
    argparse.ArgumentParser(description="Write the pages of the API reference that are out of date.").parse_args()
    pages = Reference().pages()
    for path in stale(pages):
        print(path.relative_to(ROOT))
        if path in pages:
            path.parent.mkdir(exist_ok=True)
            path.write_text(pages[path])
        else:
            path.unlink()


if __name__ == "__main__":
    main()
