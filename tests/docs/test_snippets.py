"""The manual under test: its code runs, its output is what it says, and its commands, options and links exist."""

import contextlib
import io
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile, groupby
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from talon_core import testing
from talon_core.decoding import loading
from talon_core.testing import contract

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = {"shell", "sh", "bash", "console"}
MODULE = "my_module"
"""What the module is called that a reader would write the blocks of a page into."""


@attrs.frozen
class Block:
    """A fenced block: its language, what else its fence says, its text, and where it stands."""

    language: str
    rest: str
    text: str
    start: int
    end: int


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups(), found.start(), found.end()) for found in FENCE.finditer(page.read_text())]


def examples(page: Path) -> Iterator[tuple[Block, str | None]]:
    """The Python blocks of a page, each with the output that the page shows right below it, if any."""
    text, found = page.read_text(), blocks(page)
    for block, after in zip(found, [*found, None][1:], strict=True):
        if block.language == "python":
            shown = after if after and after.language == "text" and not text[block.end : after.start].strip() else None
            yield block, shown.text if shown else None


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def logs_as_before():
    """Pages say how to see what is logged; tests that come later must not."""
    loggers = [logging.getLogger(name) for name in (None, "talon_core")]
    before = [(logger.level, [*logger.handlers]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def loaded_already(request, monkeypatch):
    """Pages load SmolLM2 as their reader does; here it is loaded once."""
    load_model = loading.load_model

    def load(name, **options):
        if name == "smollm2-135m" and not options.pop("trust_remote_code", False) and not options:
            return request.getfixturevalue("smollm")
        return load_model(name, **options)

    monkeypatch.setattr(loading, "load_model", load)


EXAMPLES = 5
"""Of a part on a page: what is tested is that the page's code runs; that the checks find faults, their own tests."""


@pytest.fixture
def fewer_examples(monkeypatch):
    """A hundred random drafters are tried with a policy, or two hundred trees with a rule of ours, by default."""
    check_rounds, check_rule = contract._check_rounds, testing.check_rule

    def rounds(make, drafters, count):
        check_rounds(make, drafters, min(count, EXAMPLES))

    def rule(make, **options):
        fewer = {"max_examples": EXAMPLES} if make.__module__.startswith("talon_") else {}
        check_rule(make, **{**fewer, **options})

    monkeypatch.setattr(contract, "_check_rounds", rounds)
    monkeypatch.setattr(testing, "check_rule", rule)


@pytest.mark.usefixtures("logs_as_before", "loaded_already", "fewer_examples")
@pytest.mark.parametrize("page", PAGES, ids=title)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    text = page.read_text()
    for block, shown in examples(page):
        before = text.count("\n", 0, block.start) + 1  # so that a traceback gives the line of the page
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * before + block.text, str(page), "exec"), vars(module))
        if shown is not None:
            assert printed.getvalue() == shown


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_no_block_of_a_page_is_exempt_from_running(page):
    known = {"python", "text", "toml", "json", *SHELL}
    assert all(block.language in known and not block.rest.strip() for block in blocks(page))


def parts(line: str) -> Iterator[list[str]]:
    """The commands of a line of shell, split into words; variables that are set for one are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
    lexer.whitespace_split = True
    for end, words in groupby(lexer, key=lambda word: set(word) <= set("|;&")):
        if not end:
            yield [*dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words)]


def commands(page: Path) -> Iterator[list[str]]:
    """Every `talon` command in the shell blocks of a page and in its running text, split into words."""
    text = page.read_text()
    shell = "\n".join(block.text for block in blocks(page) if block.language in SHELL).replace("\\\n", " ")
    inline = re.findall(r"`(talon [^`\n]+)`", FENCE.sub("", text))
    for line in [*shell.splitlines(), *inline]:
        for words in parts(line.removeprefix("$ ")):
            if words[:1] == ["talon"]:
                yield words[1:]


@cache
def whole_command():
    import typer

    from talon_core.cli.app import app

    return typer.main.get_command(app)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_command_and_option_that_a_page_names_exists(page):
    named = list(commands(page))
    if not named:
        return
    for words in named:
        command = whole_command()
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            assert words[0] in command.commands, f"there is no command {words[0]} in: talon {' '.join(words)}"
            command, words = command.commands[words[0]], words[1:]
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in {*options, "--help"}, f"there is no option {word}"


def anchors(page: Path) -> set[str]:
    """What a link may name behind the `#`: each heading as web pages of repositories write it."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_the_links_of_a_page_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if not link.startswith(("http://", "https://")):
            file, _, anchor = link.partition("#")
            led_to = page.parent / file if file else page
            assert led_to.exists(), link
            assert not anchor or anchor in anchors(led_to), link


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index
